#include "builder/keys.hpp"

#include <algorithm>
#include <array>
#include <compare>
#include <stdexcept>
#include <utility>

namespace speculant {
namespace {

constexpr int kWordBits = 63;          // of a word that a key uses: three tokens of 21 bits
constexpr std::int64_t kMaxWords = 4;  // of 11 tokens with 21 bits each, for a graph of order 10
// Sorting of buckets: up to 48 keys by insertion. From 8,192 keys on, digits have 11 bits instead of 8, because the
// 2,048 counts are then a small part of the work. Guesses: the result does not depend on them; docs/experiments.md has
// the time of a whole build.
constexpr std::int64_t kInsertionSort = 48, kManyKeys = 8192;
constexpr int kWideDigit = 11, kDigit = 8;

/// The value of a token: its id plus 1, or 0 past the end and at a separator, whose bits are all ones.
std::uint32_t value_at(std::span<const std::uint32_t> tokens, std::size_t position) {
  return position < tokens.size() ? tokens[position] + 1 : 0;
}

bool begins_with(std::span<const std::uint32_t> tokens, std::size_t position, std::span<const std::uint64_t> prefix) {
  for (std::uint64_t value : prefix) {
    if (value_at(tokens, position++) != value) return false;
  }
  return true;
}

/// A key as one value, in the order of the n-grams.
template <std::size_t kWords>
using Key = std::array<std::uint64_t, kWords>;

template <std::size_t kWords>
std::span<Key<kWords>> as_keys(std::span<std::uint64_t> words) {
  return {reinterpret_cast<Key<kWords>*>(words.data()), words.size() / kWords};
}

/// Write `source` in order to `target`.
template <class Keys>
void insertion_sort(Keys source, Keys target) {
  for (std::size_t row = 0; row < source.size(); ++row) {
    std::size_t index = row;
    for (; index > 0 && source[row] < target[index - 1]; --index) target[index] = target[index - 1];
    target[index] = source[row];
  }
}

/// Per digit of a word: first its count, later the position of the next key with it.
using Histograms = std::vector<std::array<std::uint32_t, 1 << kWideDigit>>;

/// Write `source` in sorted order to `target`; `source` is overwritten. The sort is by the tokens after `depth`, digit
/// by digit from the last one.
template <class Keys>
void radix_sort(Keys source, Keys target, std::int64_t depth, const KeyLayout& layout, Histograms& histograms) {
  bool is_in_target = false;
  const int widest = std::ssize(source) >= kManyKeys ? kWideDigit : kDigit;
  const int num_unused = layout.bits * static_cast<int>(layout.per_word * layout.num_words - layout.length);
  for (std::int64_t word = layout.num_words - 1; word >= layout.word_of(depth); --word) {
    const auto column = static_cast<std::size_t>(word);
    const int bottom = word == layout.num_words - 1 ? num_unused : 0;
    const int top = word == layout.word_of(depth) ? layout.shift_of(depth) : layout.bits * layout.per_word;
    if (top <= bottom) continue;
    const int passes = (top - bottom + widest - 1) / widest;
    const int width = (top - bottom + passes - 1) / passes;
    const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    const auto digits = std::span(histograms).first(static_cast<std::size_t>(passes));
    for (auto& histogram : digits) std::fill_n(histogram.begin(), mask + 1, 0);
    for (const auto& key : source) {
      std::uint64_t rest = key[column] >> bottom;
      for (auto& histogram : digits) ++histogram[rest & mask], rest >>= width;
    }
    for (int shift = bottom; auto& histogram : digits) {
      const bool is_constant = histogram[source[0][column] >> shift & mask] == source.size();
      if (!is_constant) {
        std::uint32_t total = 0;
        for (std::size_t digit = 0; digit <= mask; ++digit) total += std::exchange(histogram[digit], total);
        for (const auto& key : source) target[histogram[key[column] >> shift & mask]++] = key;
        std::swap(source, target);
        is_in_target = !is_in_target;
      }
      shift += width;
    }
  }
  if (!is_in_target) std::ranges::copy(source, target.begin());
}

/// Scatter keys by the token at `depth` first. The passes over later tokens then work on buckets that mostly fit into a
/// core's cache.
template <std::size_t kWords>
void sort(std::span<Key<kWords>> keys, std::span<Key<kWords>> spare, std::int64_t depth, std::uint64_t low,
          std::uint64_t high, const KeyLayout& layout) {
  const auto bucket_of = [&](const Key<kWords>& key) { return layout.value(key.data(), depth) - low; };
  std::vector<std::size_t> starts(high - low + 1), ends;
  for (const auto& key : keys) {
    const std::uint64_t bucket = bucket_of(key);
    if (bucket >= high - low) throw std::invalid_argument("a key is out of the bounds that it is sorted by");
    ++starts[bucket + 1];
  }
  for (std::size_t bucket = 1; bucket < starts.size(); ++bucket) starts[bucket] += starts[bucket - 1];
  ends.assign(starts.begin(), starts.end() - 1);
  for (const auto& key : keys) spare[ends[bucket_of(key)]++] = key;
  Histograms histograms(kWordBits / kDigit + 1);
  for (std::size_t bucket = 0; bucket < ends.size(); ++bucket) {
    const std::size_t size = starts[bucket + 1] - starts[bucket];
    if (size == 0) continue;
    const auto source = spare.subspan(starts[bucket], size), target = keys.subspan(starts[bucket], size);
    if (size <= kInsertionSort) {
      insertion_sort(source, target);
    } else {
      radix_sort(source, target, depth, layout, histograms);
    }
  }
}

}  // namespace

KeyLayout::KeyLayout(std::int64_t tokens, int token_bits) : length(tokens), bits(token_bits) {
  if (length < 1 || bits < 1 || bits > kWordBits) throw std::invalid_argument("no key is of such a form");
  per_word = static_cast<int>(std::min<std::int64_t>(length, kWordBits / bits));
  num_words = (length + per_word - 1) / per_word;
  if (num_words > kMaxWords) throw std::invalid_argument("no key is as long as that");
}

void count_values(std::span<const std::uint32_t> tokens, std::span<const std::uint64_t> prefix,
                  std::span<std::int64_t> counts) {
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    if (value_at(tokens, position) == 0 || !begins_with(tokens, position, prefix)) continue;
    const std::size_t value = value_at(tokens, position + prefix.size());
    if (value >= counts.size()) throw std::invalid_argument("a token is not in the vocabulary");
    ++counts[value];
  }
}

std::int64_t gather_keys(std::span<const std::uint32_t> tokens, std::span<const std::uint64_t> prefix,
                         std::uint64_t low, std::uint64_t high, const KeyLayout& layout,
                         std::span<std::uint64_t> keys) {
  std::uint64_t* key = keys.data();
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    if (value_at(tokens, position + prefix.size()) - low >= high - low) continue;
    if (!begins_with(tokens, position, prefix)) continue;
    if (keys.data() + keys.size() - key < layout.num_words) throw std::invalid_argument("there are more keys");
    std::size_t next = position;
    std::int64_t remaining = layout.length;
    for (std::int64_t index = 0; index < layout.num_words; ++index) {
      std::uint64_t word = 0;
      for (int each = 0; each < layout.per_word; ++each) {
        const std::uint64_t value = remaining > 0 ? value_at(tokens, next++) : 0;
        remaining = value != 0 ? remaining - 1 : 0;
        word = word << layout.bits | value;
      }
      *key++ = word;
    }
  }
  return (key - keys.data()) / layout.num_words;
}

void sort_keys(std::span<std::uint64_t> keys, std::span<std::uint64_t> spare, std::int64_t depth, std::uint64_t low,
               std::uint64_t high, const KeyLayout& layout) {
  if (depth < 0 || depth >= layout.length || low > high || high > layout.mask() + 1 || spare.size() != keys.size()) {
    throw std::invalid_argument("keys can't be sorted by that");
  }
  const auto sort_words = [&]<std::size_t kWords>() {
    sort<kWords>(as_keys<kWords>(keys), as_keys<kWords>(spare), depth, low, high, layout);
  };
  switch (layout.num_words) {
    case 1:
      return sort_words.operator()<1>();
    case 2:
      return sort_words.operator()<2>();
    case 3:
      return sort_words.operator()<3>();
    default:
      return sort_words.operator()<kMaxWords>();
  }
}

KeyReader::KeyReader(const Trie& trie, int bits, std::int64_t min_count)
    : trie_(trie), layout_(trie.max_order() + 1, bits), min_count_(min_count) {
  rest_.push_back({0, trie.level(1).size});
  key_.resize(static_cast<std::size_t>(layout_.num_words));
}

void KeyReader::set_token(std::int64_t depth, Token token) {
  const auto word = static_cast<std::size_t>(layout_.word_of(depth));
  const int shift = layout_.shift_of(depth);
  const std::uint64_t before = key_[word] >> shift >> layout_.bits << layout_.bits;
  key_[word] = (before | static_cast<std::uint64_t>(token + 1)) << shift;
  std::fill(key_.begin() + static_cast<std::ptrdiff_t>(word) + 1, key_.end(), 0);
}

/// The part of an n-gram's count that its kept children do not cover.
std::int64_t KeyReader::own_count(std::int64_t count, std::int64_t length, Range children) const {
  if (length == layout_.length || children.empty()) return count;
  const Level& next = trie_.level(length + 1);
  if (min_count_ == 1) return count - next.total(children);
  for (std::int64_t child = children.low; child < children.high; ++child) {
    const std::int64_t each = next.count(child);
    if (each >= min_count_) count -= each;
  }
  return count;
}

std::size_t KeyReader::read(std::span<std::uint64_t> keys, std::span<std::int64_t> weights) {
  std::size_t found = 0;
  while (found < weights.size()) {
    while (!rest_.empty() && rest_.back().empty()) rest_.pop_back();
    if (rest_.empty()) break;
    const std::int64_t length = std::ssize(rest_), node = rest_.back().low++;
    const Level& level = trie_.level(length);
    const std::int64_t count = level.count(node);
    if (count < min_count_) continue;
    const Range children = length < layout_.length ? trie_.children({length, node}) : Range{};
    set_token(length - 1, level.token(node));
    const std::int64_t own = own_count(count, length, children);
    if (own > 0) {
      std::ranges::copy(key_, keys.data() + found * key_.size());
      weights[found++] = own;
    }
    if (length < layout_.length) rest_.push_back(children);
  }
  return found;
}

std::size_t merge_keys(WeightedKeys& first, WeightedKeys& second, std::size_t num_words, std::span<std::uint64_t> keys,
                       std::span<std::int64_t> weights) {
  std::size_t found = 0;
  while (!first.empty() && !second.empty()) {
    const auto key = first.keys.subspan(first.next * num_words, num_words);
    const auto other = second.keys.subspan(second.next * num_words, num_words);
    const auto order = std::lexicographical_compare_three_way(key.begin(), key.end(), other.begin(), other.end());
    std::ranges::copy(order <= 0 ? key : other, keys.data() + found * num_words);
    std::int64_t weight = 0;
    if (order <= 0) weight += first.weights[first.next++];
    if (order >= 0) weight += second.weights[second.next++];
    if (weight != 0) weights[found++] = weight;  // otherwise the n-gram's own count is zero
  }
  return found;
}

}  // namespace speculant
