#include "ring.hpp"

#include <bit>
#include <cassert>
#include <utility>

namespace speculant {
namespace {

// Places of a new ring: 10 KB, so that short sequences stay small (docs/sizing.md). A guess: only memory depends on it.
constexpr std::int64_t kFirstPlaces = 512;
// Maximum number of tokens that a chain hashes: histories have chains of 4 and of 1 or 2 (docs/experiments.md,
// "Learning from earlier sequences"). It is the size of a buffer.
constexpr std::int64_t kLongestChain = 4;
// Old tokens copied per added token. A table starts to grow when it is three quarters full, so four would copy all of
// it in time; six leave time to allocate the pages first.
constexpr int kCopiedPerToken = 6;
// Buckets allocated at a time: 256 KB for two chains. Copied tokens access them at random, and a page takes up to 4 us.
// So the 64 pages of a step take at most a quarter of a millisecond.
constexpr std::size_t kTouched = 1 << 15;

std::int64_t power_of_two(std::int64_t number) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(number, 2))));
}

/// A hash of the `length` tokens before `end`.
std::size_t hash_of(const Token* end, int length) {
  auto value = static_cast<std::uint64_t>(length);
  for (int back = 1; back <= length; ++back) {
    value = (value ^ static_cast<std::uint64_t>(std::int64_t{end[-back]} + 3)) * kHashFactor;
    value ^= static_cast<std::uint64_t>(static_cast<std::int64_t>(value) >> 29);
  }
  return static_cast<std::size_t>(static_cast<std::int64_t>(value) >> 8);
}

/// The position whose last 32 bits a head stores, if `size` is the next position; -1 if there is none. An old position
/// may look like a newer one, which is then compared like any other.
std::int64_t position_of(std::uint32_t head, std::int64_t size) {
  const std::uint32_t distance = static_cast<std::uint32_t>(size) + 1 - head;
  return head == 0 || distance == 0 ? -1 : size - std::int64_t{distance};
}

}  // namespace

TokenRing::Table::Table(std::int64_t num_places)
    : mask_(static_cast<std::size_t>(num_places) - 1),
      places_(mask_ + 1),
      heads_{Zeros<std::uint32_t>(mask_ + 1), Zeros<std::uint32_t>(mask_ + 1)} {}

std::uint32_t& TokenRing::Table::head(std::size_t chain, int length, const Token* end) const {
  return heads_[chain][hash_of(end, length) & mask_];
}

std::int64_t TokenRing::Table::newest(std::size_t chain, int length, const Token* end, std::int64_t size) const {
  return position_of(head(chain, length, end), size);
}

void TokenRing::Table::put(std::int64_t position, Token token, const Token* end,
                           const std::array<int, kNumChains>& lengths) {
  Place& place = this->place(position) = {token, {}};
  for (std::size_t chain = 0; chain < kNumChains; ++chain) {
    if (position + 1 < lengths[chain]) continue;
    std::uint32_t& head = this->head(chain, lengths[chain], end);
    const std::int64_t before = position_of(head, position);
    if (before >= 0 && position - before < num_places()) {
      place.distances[chain] = static_cast<std::int32_t>(position - before);
    }
    head = static_cast<std::uint32_t>(position) + 1;
  }
}

bool TokenRing::Table::shrink() {
  bool is_left = places_.shrink();
  for (auto& each : heads_) is_left |= each.shrink();
  return is_left;
}

void TokenRing::Table::touch_next() {
  constexpr std::size_t kPage = 4'096 / sizeof(std::uint32_t);  // buckets of the smallest page of any system
  const std::size_t last = std::min(num_touched_ + kTouched, mask_ + 1);
  for (std::size_t bucket = num_touched_; bucket < last; bucket += kPage) {
    for (auto& each : heads_) {
      volatile std::uint32_t& head = each[bucket];
      head = head;
    }
  }
  num_touched_ = last;
}

std::size_t TokenRing::Table::num_bytes() const {
  return places_.num_bytes() + heads_[0].num_bytes() + heads_[1].num_bytes();
}

TokenRing::TokenRing(std::int64_t max_tokens, const std::array<int, kNumChains>& chain_lengths)
    : max_tokens_(max_tokens), chain_lengths_(chain_lengths), table_(std::min(power_of_two(max_tokens), kFirstPlaces)) {
  assert(std::ranges::max(chain_lengths) <= kLongestChain);
}

std::int64_t TokenRing::newest(std::size_t chain, const Token* end) const {
  return table_.newest(chain, chain_lengths_[chain], end, size_);
}

void TokenRing::reserve(std::int64_t num_tokens) {
  if (growth_ && !growth_->table.is_touched()) growth_->table.touch_next();
  if (outgrown_ && !outgrown_->shrink()) outgrown_.reset();
  const std::int64_t wanted = std::min(size_ + num_tokens, max_tokens_), num_places = table_.num_places();
  if (wanted > num_places) {
    const std::int64_t grown = power_of_two(wanted);
    if (!growth_ || growth_->table.num_places() != grown) growth_.reset(new Growth{Table(grown)});
    while (growth_->num_copied < size_) copy_next();
    outgrown_ = std::make_unique<Table>(std::exchange(table_, std::move(growth_->table)));
    if (!outgrown_->shrink()) outgrown_.reset();
    growth_.reset();
  } else if (!growth_ && num_places > kGrownAtOnce && max_tokens_ > num_places && 4 * wanted > 3 * num_places) {
    growth_.reset(new Growth{Table(2 * num_places)});
  }
}

void TokenRing::copy_next() {
  const std::int64_t position = growth_->num_copied++;
  std::array<Token, kLongestChain> last;
  for (std::int64_t back = 0; back < kLongestChain; ++back) {
    last[static_cast<std::size_t>(kLongestChain - 1 - back)] =
        position >= back ? as_sought(at(position - back)) : kNoToken;
  }
  growth_->table.put(position, at(position), last.data() + kLongestChain, chain_lengths_);
}

void TokenRing::push(Token token, const Token* end) {
  table_.put(size_, as_kept(token), end, chain_lengths_);
  ++size_;
  if (!growth_ || !growth_->table.is_touched()) return;
  for (int each = 0; each < kCopiedPerToken && growth_->num_copied < size_; ++each) copy_next();
}

std::int64_t TokenRing::num_bytes() const {
  return static_cast<std::int64_t>(table_.num_bytes() + (growth_ ? growth_->table.num_bytes() : 0) +
                                   (outgrown_ ? outgrown_->num_bytes() : 0));
}

}  // namespace speculant
