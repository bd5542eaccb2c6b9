#include "session_history.hpp"

#include <algorithm>
#include <bit>

namespace speculant {
namespace {

constexpr std::int64_t kFirstCapacity = 512;

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

}  // namespace

SessionHistory::SessionHistory(std::int64_t max_tokens, const std::vector<int>& chain_lengths)
    : max_tokens_(max_tokens) {
  for (int length : chain_lengths) chains_.push_back({length, {}, {}});
  allocate(std::min(power_of_two(max_tokens), kFirstCapacity));
}

void SessionHistory::allocate(std::int64_t capacity) {
  const auto slots = static_cast<std::size_t>(capacity);
  ring_.assign(slots, kSeparator);
  for (Chain& chain : chains_) {
    chain.distances.assign(slots, 0);
    chain.heads.assign(slots, -1);
  }
  lookback_ = std::min(capacity, max_tokens_);
}

void SessionHistory::reserve(std::int64_t num_tokens) {
  const auto capacity = static_cast<std::int64_t>(ring_.size());
  const std::int64_t wanted = std::min(size_ + num_tokens, max_tokens_);
  if (wanted <= capacity) return;
  const std::vector<Token> kept = latest(capacity);
  size_ -= std::ssize(kept);
  allocate(power_of_two(wanted));
  Window window;
  window.fill(kNoToken);
  for (Token token : kept) push(token, window);
}

std::vector<Token> SessionHistory::latest(std::int64_t num_tokens) const {
  const std::int64_t count =
      std::max<std::int64_t>(std::min({size_, num_tokens, static_cast<std::int64_t>(ring_.size()), max_tokens_}), 0);
  std::vector<Token> tokens;
  tokens.reserve(static_cast<std::size_t>(count));
  for (std::int64_t back = count; back > 0; --back) tokens.push_back(at(size_ - back));
  return tokens;
}

void SessionHistory::fill(Window& window) const {
  for (std::int64_t back = 1; back <= kMaxMatch; ++back) {
    const Token token = size_ - back >= oldest() ? at(size_ - back) : kNoToken;
    window[static_cast<std::size_t>(kMaxMatch - back)] = token >= 0 ? token : kNoToken;
  }
}

std::int64_t SessionHistory::newest_in_chain(std::size_t chain, const Token* end) const {
  const auto& [length, distances, heads] = chains_[chain];
  return heads[bucket_of(end, length, heads.size())];
}

void SessionHistory::push(Token token, Window& window) {
  const Token* end = window.data() + kMaxMatch;
  std::copy(window.begin() + 1, window.begin() + kMaxMatch, window.begin());
  window[kMaxMatch - 1] = token >= 0 ? token : kNoToken;
  const auto slot = static_cast<std::size_t>(size_) & mask();
  // What is no token is stored as one thing and looked for as another, so that it never matches itself.
  ring_[slot] = token >= 0 ? token : kSeparator;
  for (Chain& chain : chains_) {
    chain.distances[slot] = 0;
    if (size_ + 1 < chain.length) continue;
    std::int64_t& head = chain.heads[bucket_of(end, chain.length, chain.heads.size())];
    if (head >= 0 && size_ - head < std::ssize(ring_)) chain.distances[slot] = static_cast<std::int32_t>(size_ - head);
    head = size_;
  }
  ++size_;
}

void SessionHistory::append(std::span<const Token> tokens) {
  reserve(std::ssize(tokens));
  Window window;
  fill(window);
  for (Token token : tokens) push(token, window);
}

std::int64_t SessionHistory::num_bytes() const {
  std::size_t bytes = ring_.size() * sizeof(Token);
  for (const Chain& chain : chains_) {
    bytes += chain.distances.size() * sizeof(std::int32_t) + chain.heads.size() * sizeof(std::int64_t);
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace speculant
