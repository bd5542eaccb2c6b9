#include "trie.hpp"

#include <algorithm>
#include <numeric>

namespace speculant {
namespace {

constexpr std::int64_t kLinearSearch = 4;  // ranges up to this size are read one by one; a guess: 16 takes as long

std::span<const std::uint32_t> part(std::span<const std::uint32_t> words, std::int64_t start, std::int64_t size) {
  const auto num_words = static_cast<std::int64_t>(words.size());
  if (start < 0 || size < 0 || start > num_words || size > num_words - start) {
    throw std::invalid_argument("the graph's table names words that it does not have");
  }
  return words.subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(size));
}

}  // namespace

Trie::Trie(std::span<const std::uint32_t> words, std::span<const std::int64_t> table) {
  max_order_ = static_cast<std::int64_t>(table.size()) / 2 - 3;
  if (max_order_ < 1) throw std::invalid_argument("a graph's table has a row for every level and two more");
  const auto entry = [&](std::int64_t index) { return table[static_cast<std::size_t>(index)]; };
  for (std::int64_t length = 1; length <= max_order_ + 1; ++length) {
    const std::int64_t start = entry(2 * length - 2), size = entry(2 * length - 1);
    if (size < 0 || size >= std::int64_t{1} << 32) throw std::invalid_argument("a level's size is impossible");
    const std::int64_t width = length <= max_order_ ? kInnerWords : kLeafWords;
    levels_.push_back({part(words, start, (size + 1) * width).data(), size, width});
  }
  const std::int64_t start = entry(2 * max_order_ + 2), size = entry(2 * max_order_ + 3);
  if (size < 0 || size > kMaxVocabulary) throw std::invalid_argument("the vocabulary's size is impossible");
  unigram_index_ = part(words, start, size + 1).data();
  vocabulary_size_ = static_cast<Token>(size);
}

std::int64_t Trie::find_child(const Level& level, Range range, Token token) const {
  while (range.size() > kLinearSearch) {
    const std::int64_t middle = (range.low + range.high) / 2;
    (level.token(middle) <= token ? range.low : range.high) = middle;
  }
  for (; range.low < range.high; ++range.low) {
    if (level.token(range.low) == token) return range.low;
  }
  return -1;
}

std::int64_t Trie::find_unigram(Token token) const {
  if (token < 0 || token >= vocabulary_size_) return -1;
  const std::int64_t node = unigram_index_[token];
  return node < level(1).size && level(1).token(node) == token ? node : -1;
}

std::int64_t Trie::find_ngram(std::span<const Token> ngram) const {
  std::int64_t node = find_unigram(ngram.front());
  for (std::int64_t order = 1; order < std::ssize(ngram) && node >= 0; ++order) {
    node = find_child(level(order + 1), children({order, node}), ngram[static_cast<std::size_t>(order)]);
  }
  return node;
}

Context Trie::extend(Context context, Token token) const {
  if (max_order_ == 0) return {};
  if (context.order == max_order_) context = shorter(context);
  for (; context.order > 0; context = shorter(context)) {
    const std::int64_t child = find_child(level(context.order + 1), children(context), token);
    if (child >= 0) return back_off({context.order + 1, child});
  }
  const std::int64_t unigram = find_unigram(token);
  return unigram < 0 ? Context{} : back_off({1, unigram});
}

Context Trie::match(std::span<const Token> tokens) const {
  Context context;
  for (Token token : tokens.last(std::min(tokens.size(), static_cast<std::size_t>(max_order_)))) {
    context = extend(context, token);
  }
  return context;
}

std::int64_t Trie::argmax_child(Context context, Range range) const {
  const std::int64_t offset = level(context.order).record(context.node)[0] >> kTokenBits;
  if (offset < kArgmaxOverflow && range.low + offset < range.high) return range.low + offset;
  return level(context.order + 1).argmax(range);
}

void Trie::spell(std::int64_t length, std::int64_t start, std::span<std::uint32_t> ngrams) const {
  const std::int64_t count = std::ssize(ngrams) / length;
  const auto word = [&](std::int64_t index, std::int64_t column) -> std::uint32_t& {
    return ngrams[static_cast<std::size_t>(index * length + column)];
  };
  std::vector<std::int64_t> nodes(static_cast<std::size_t>(count));
  std::iota(nodes.begin(), nodes.end(), start);
  for (std::int64_t index = 0; index < count; ++index) {
    word(index, length - 1) = static_cast<std::uint32_t>(level(length).token(start + index));
  }
  for (std::int64_t depth = length - 1; depth > 0; --depth) {
    const Level& above = level(depth);
    const auto first_child = [&](std::int64_t node) { return static_cast<std::int64_t>(above.record(node)[kChild]); };
    // The parent is the last record of the level above whose children do not begin after the node.
    std::int64_t low = 0, high = above.size;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (count > 0 && first_child(middle) <= nodes.front() ? low : high) = middle;
    }
    for (std::int64_t index = 0, parent = low; index < count; ++index) {
      std::int64_t& node = nodes[static_cast<std::size_t>(index)];
      while (parent + 1 < above.size && first_child(parent + 1) <= node) ++parent;
      word(index, depth - 1) = static_cast<std::uint32_t>(above.token(parent));
      node = parent;
    }
  }
}

void Trie::prefetch_children(Context context) const {
  if (context.order == 0) return;
  const std::int64_t child = level(context.order).record(context.node)[kChild];
  if (child < level(context.order + 1).size) __builtin_prefetch(level(context.order + 1).record(child));
}

void Trie::prefetch_all_children(Context context) const {
  for (; context.order > 0; context = shorter(context)) prefetch_children(context);
}

}  // namespace speculant
