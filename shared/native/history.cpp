#include "history.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdlib>
#include <new>
#include <utility>

namespace speculant {
namespace {

constexpr std::int64_t kFirstCapacity = 512;
constexpr std::int64_t kLongestChain = 4;
constexpr std::size_t kMapped = 1 << 17;  // of so many bytes or more, memory is the system's pages
// A ring grows from three quarters on; four tokens for each that is added would copy all of it in time.
constexpr int kCopiedPerToken = 6;
// Buckets that get their memory at a time: tokens that are copied touch all of it at random, and a page takes up to 4
// us.
constexpr std::size_t kTouched = 1 << 15;

std::int64_t power_of_two(std::int64_t number) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(number, 2))));
}

/// The bucket of the `length` tokens before `end`; `size` is a power of two.
std::size_t bucket_of(const Token* end, int length, std::size_t size) {
  auto value = static_cast<std::uint64_t>(length);
  for (int back = 1; back <= length; ++back) {
    value = (value ^ static_cast<std::uint64_t>(std::int64_t{end[-back]} + 3)) * 0x1E3779B97F4A7C15;
    value ^= static_cast<std::uint64_t>(static_cast<std::int64_t>(value) >> 29);
  }
  return static_cast<std::size_t>(static_cast<std::int64_t>(value) >> 8) & (size - 1);
}

/// The position that a head holds the last 32 bits of, where `size` is the next one; -1 if there is none. One that is
/// older than that may be taken for a younger one, which is then compared like any other.
std::int64_t position_of(std::uint32_t head, std::int64_t size) {
  const std::uint32_t distance = static_cast<std::uint32_t>(size) + 1 - head;
  return head == 0 || distance == 0 ? -1 : size - std::int64_t{distance};
}

/// What names a context of the last token, or of the last two.
std::int64_t key_of(Token before, Token last, int length) {
  return length == 1 ? last : (std::int64_t{before} + 1) << 24 | last;
}

std::size_t slot_of(std::int64_t key) {
  const std::uint64_t hash = static_cast<std::uint64_t>(key) * 0x1E3779B97F4A7C15;
  return static_cast<std::size_t>(hash >> 40) % TargetRows::kNumSlots;
}

constexpr TargetRows::Rows kNoRows = [] {
  TargetRows::Rows rows{};
  for (auto& row : rows) row.fill(-1);
  return rows;
}();

bool is_context(const Token* end, int length) { return end[-1] >= 0 && (length == 1 || end[-2] >= 0); }

/// Put a row into the slots of its contexts, which `slot_at` finds by their numbers.
template <class SlotAt>
void put_row(Token before, Token last, std::span<const Token> row, SlotAt&& slot_at) {
  if (last < 0 || row.empty() || row.front() < 0) return;
  for (int length = 1; length <= (before >= 0 ? 2 : 1); ++length) {
    const std::int64_t key = key_of(before, last, length);
    TargetRows::Slot& slot = slot_at(slot_of(key));
    if (slot.key != key) slot = {key, kNoRows};
    std::shift_right(slot.rows.begin(), slot.rows.end(), 1);
    slot.rows.front().fill(-1);
    std::copy_n(row.begin(), std::min<std::size_t>(row.size(), kRowWidth), slot.rows.front().begin());
  }
}

}  // namespace

SessionHistory::SessionHistory(std::int64_t max_tokens, const std::array<int, kNumChains>& chain_lengths)
    : max_tokens_(max_tokens),
      chain_lengths_(chain_lengths),
      ring_(std::min(power_of_two(max_tokens), kFirstCapacity)) {
  assert(std::ranges::max(chain_lengths) <= kLongestChain);
}

void* SessionHistory::take_zeros(std::size_t num_bytes) {
  void* const memory = num_bytes < kMapped
                           ? std::calloc(num_bytes, 1)
                           : mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == nullptr || memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

std::size_t SessionHistory::give_back(void* memory, std::size_t num_bytes, std::size_t most) {
  if (num_bytes == 0) return 0;
  if (num_bytes < kMapped) {
    std::free(memory);
    return 0;
  }
  // Never less than a part, or the rest would look like memory of the other kind.
  const std::size_t left = num_bytes > most + kMapped ? num_bytes - most : 0;
  munmap(static_cast<char*>(memory) + left, num_bytes - left);
  return left;
}

bool SessionHistory::Ring::shrink() {
  bool is_left = slots.shrink();
  for (auto& each : heads) is_left |= each.shrink();
  return is_left;
}

void SessionHistory::Ring::touch(std::size_t first, std::size_t last) {
  constexpr std::size_t kPage = 4'096 / sizeof(std::uint32_t);
  for (std::size_t bucket = first; bucket < std::min(last, size); bucket += kPage) {
    for (auto& each : heads) {
      volatile std::uint32_t& head = each[bucket];
      head = head;
    }
  }
}

void SessionHistory::reserve(std::int64_t num_tokens) {
  if (growth_ && growth_->num_touched < growth_->ring.size) {
    growth_->ring.touch(growth_->num_touched, growth_->num_touched + kTouched);
    growth_->num_touched += kTouched;
  }
  if (outgrown_ && !outgrown_->shrink()) outgrown_.reset();
  const std::int64_t wanted = std::min(size_ + num_tokens, max_tokens_);
  if (wanted > capacity()) {
    const std::int64_t grown = power_of_two(wanted);
    if (!growth_ || std::cmp_not_equal(growth_->ring.size, grown)) growth_.reset(new Growth{Ring(grown)});
    while (growth_->num_copied < size_) copy_next();
    outgrown_ = std::make_unique<Ring>(std::exchange(ring_, std::move(growth_->ring)));
    if (!outgrown_->shrink()) outgrown_.reset();
    growth_.reset();
  } else if (!growth_ && capacity() > kGrownAtOnce && max_tokens_ > capacity() && 4 * wanted > 3 * capacity()) {
    growth_.reset(new Growth{Ring(2 * capacity())});
  }
}

/// Copy the oldest token that the next ring does not have.
void SessionHistory::copy_next() {
  const std::int64_t position = growth_->num_copied++;
  std::array<Token, kLongestChain> last;
  for (std::int64_t back = 0; back < kLongestChain; ++back) {
    const Token token = position >= back ? at(position - back) : kNoToken;
    last[static_cast<std::size_t>(kLongestChain - 1 - back)] = token >= 0 ? token : kNoToken;
  }
  link(growth_->ring, position, at(position), last.data() + kLongestChain);
}

std::vector<Token> SessionHistory::latest(std::int64_t num_tokens) const {
  const std::int64_t count = std::max<std::int64_t>(std::min({size_, num_tokens, capacity(), max_tokens_}), 0);
  std::vector<Token> tokens;
  tokens.reserve(static_cast<std::size_t>(count));
  for (std::int64_t back = count; back > 0; --back) tokens.push_back(at(size_ - back));
  return tokens;
}

void SessionHistory::fill(Window& window, std::int64_t end) const {
  for (std::int64_t back = 1; back <= kMaxMatch; ++back) {
    const Token token = end - back >= oldest() ? at(end - back) : kNoToken;
    window[static_cast<std::size_t>(kMaxMatch - back)] = token >= 0 ? token : kNoToken;
  }
}

std::int64_t SessionHistory::newest_in_chain(std::size_t chain, const Token* end) const {
  return position_of(ring_.heads[chain][bucket_of(end, chain_lengths_[chain], ring_.size)], size_);
}

void SessionHistory::link(Ring& ring, std::int64_t position, Token token, const Token* end) const {
  Slot& slot = ring.slots[static_cast<std::size_t>(position) & (ring.size - 1)] = {token, {}};
  for (std::size_t chain = 0; chain < kNumChains; ++chain) {
    const int length = chain_lengths_[chain];
    if (position + 1 < length) continue;
    std::uint32_t& head = ring.heads[chain][bucket_of(end, length, ring.size)];
    const std::int64_t before = position_of(head, position);
    if (before >= 0 && std::cmp_less(position - before, ring.size)) {
      slot.distances[chain] = static_cast<std::int32_t>(position - before);
    }
    head = static_cast<std::uint32_t>(position) + 1;
  }
}

void SessionHistory::push(Token token, Window& window) {
  const Token* end = window.data() + kMaxMatch;
  std::copy(window.begin() + 1, window.begin() + kMaxMatch, window.begin());
  window[kMaxMatch - 1] = token >= 0 ? token : kNoToken;
  // What is no token is stored as one thing and looked for as another, so that it never matches itself.
  link(ring_, size_, token >= 0 ? token : kSeparator, end);
  ++size_;
  if (!growth_ || growth_->num_touched < growth_->ring.size) return;
  for (int each = 0; each < kCopiedPerToken && growth_->num_copied < size_; ++each) copy_next();
}

void SessionHistory::append(std::span<const Token> tokens) {
  reserve(std::ssize(tokens));
  Window window;
  fill(window);
  for (Token token : tokens) push(token, window);
}

std::int64_t SessionHistory::num_bytes() const {
  return static_cast<std::int64_t>(ring_.num_bytes() + (growth_ ? growth_->ring.num_bytes() : 0) +
                                   (outgrown_ ? outgrown_->num_bytes() : 0));
}

void TargetRows::put(Token before, Token last, std::span<const Token> row) {
  is_changed = true;
  if (slots_.empty()) slots_.resize(kNumSlots, {-1, kNoRows});
  put_row(before, last, row, [&](std::size_t index) -> Slot& { return slots_[index]; });
}

const TargetRows::Rows* TargetRows::find(const Token* end, int length) const {
  if (slots_.empty() || !is_context(end, length)) return nullptr;
  const std::int64_t key = key_of(end[-2], end[-1], length);
  const Slot& slot = slots_[slot_of(key)];
  return slot.key == key ? &slot.rows : nullptr;
}

void TargetRows::restore(std::size_t index, const Slot& slot) {
  if (slots_.empty()) slots_.resize(kNumSlots, {-1, kNoRows});
  slots_.at(index) = slot;
}

void TargetRowsOverlay::put(Token before, Token last, std::span<const Token> row) {
  put_row(before, last, row, [&](std::size_t index) -> TargetRows::Slot& { return own(index); });
}

const TargetRows::Rows* TargetRowsOverlay::find(const Token* end, int length) const {
  if (own_.empty() || !is_context(end, length)) return table_.find(end, length);
  const std::int64_t key = key_of(end[-2], end[-1], length);
  const std::uint32_t found = places_[place_of(slot_of(key))];
  if (found == 0) return table_.find(end, length);
  const TargetRows::Slot& slot = own_[found - 1].slot;
  return slot.key == key ? &slot.rows : nullptr;
}

std::size_t TargetRowsOverlay::place_of(std::size_t index) const {
  const std::size_t mask = places_.size() - 1;
  std::size_t place = index & mask;
  while (places_[place] != 0 && own_[places_[place] - 1].index != index) place = (place + 1) & mask;
  return place;
}

TargetRows::Slot& TargetRowsOverlay::own(std::size_t index) {
  if (2 * (own_.size() + 1) > places_.size()) {
    places_.assign(std::max<std::size_t>(2 * places_.size(), 16), 0);
    for (std::size_t each = 0; each < own_.size(); ++each) {
      places_[place_of(own_[each].index)] = static_cast<std::uint32_t>(each) + 1;
    }
  }
  std::uint32_t& found = places_[place_of(index)];
  if (found == 0) {
    const TargetRows::Slot slot = table_.slots_.empty() ? TargetRows::Slot{-1, kNoRows} : table_.slots_[index];
    own_.push_back({static_cast<std::uint32_t>(index), slot});
    found = static_cast<std::uint32_t>(own_.size());
  }
  return own_[found - 1].slot;
}

std::int64_t TargetRowsOverlay::num_bytes() const {
  return static_cast<std::int64_t>(own_.capacity() * sizeof(Own) + places_.capacity() * sizeof(std::uint32_t));
}

}  // namespace speculant
