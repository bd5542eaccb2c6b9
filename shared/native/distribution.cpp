#include "distribution.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace speculant {
namespace {

/// A logarithm takes ten times as long as reading one, and most counts are small.
double count_log_count(std::int64_t count) {
  static const auto table = [] {
    std::array<double, 1 << 10> values{};
    for (std::size_t each = 1; each < values.size(); ++each) {
      values[each] = static_cast<double>(each) * std::log(static_cast<double>(each));
    }
    return values;
  }();
  if (count < std::ssize(table)) return table[static_cast<std::size_t>(count)];
  return static_cast<double>(count) * std::log(static_cast<double>(count));
}

/// A count that is never 0, which a damaged file may hold.
std::int64_t positive_count(const Level& level, std::int64_t node) {
  return std::max<std::int64_t>(static_cast<std::uint32_t>(level.count(node)), 1);
}

/// What followed a context, no more than there are tokens; a damaged file could name a whole level.
Range bounded_children(const Trie& trie, Context context) {
  const Range range = trie.children(context);
  return {range.low, std::min<std::int64_t>(range.high, range.low + trie.vocabulary_size())};
}

/// How much attention a context gets.
double score(const Trie& trie, Context context, Range children, std::int64_t total, const Attention& attention) {
  const Level& below = trie.level(context.order + 1);
  double weighted = 0.0;
  if (attention.entropy > 0.0) {
    for (std::int64_t child = children.low; child < children.high; ++child) {
      weighted += count_log_count(positive_count(below, child));
    }
  }
  // -sum(p ln p) with p = count/total, so that there is one division.
  const double entropy = std::log(static_cast<double>(total)) - weighted / static_cast<double>(total);
  const auto occurrences = static_cast<double>(positive_count(trie.level(context.order), context.node));
  return attention.order * static_cast<double>(context.order) + attention.count * std::log(1.0 + occurrences) -
         attention.entropy * entropy;
}

}  // namespace

void Masses::read(const Trie& trie, Context context, const DistributionOptions& options) {
  if (options.attention) {
    mix(trie, context, *options.attention);
  } else {
    read_counts(trie, context);
  }
  if (options.temperature != 1.0) temper(options.temperature);
}

void Masses::read_counts(const Trie& trie, Context context) {
  level_ = &trie.level(context.order + 1);
  const Range children = bounded_children(trie, context);
  low_ = children.low;
  values_.clear();
  for (std::int64_t child = children.low; child < children.high; ++child) {
    values_.push_back(static_cast<double>(positive_count(*level_, child)));
  }
  total_ = std::accumulate(values_.begin(), values_.end(), 0.0);
}

/// Mix the children of all known contexts.
///
/// What followed a context followed each shorter one, so the children of order 1 are all of them, and the suffix links
/// of a context's children lead to the same tokens among those of the next shorter one: masses are handed down, never
/// searched.
void Masses::mix(const Trie& trie, Context context, const Attention& attention) {
  struct Part {
    Range children;
    double weight, total;
  };
  const std::int64_t order = context.order;
  std::vector<Part> parts(static_cast<std::size_t>(order) + 1);
  const auto part_of = [&](std::int64_t each) -> Part& { return parts[static_cast<std::size_t>(each)]; };
  double highest = -std::numeric_limits<double>::infinity(), normaliser = 0.0;
  for (; context.order > 0; context = trie.shorter(context)) {
    const Range children = bounded_children(trie, context);
    Part& part = part_of(context.order) = {children, -std::numeric_limits<double>::infinity(), 1.0};
    if (children.empty()) continue;  // never, unless the file is damaged
    std::int64_t total = 0;
    for (std::int64_t child = children.low; child < children.high; ++child) {
      total += positive_count(trie.level(context.order + 1), child);
    }
    part.weight = score(trie, context, children, total, attention);
    part.total = static_cast<double>(total);
    highest = std::max(highest, part.weight);
  }
  for (std::int64_t each = order; each > 0; --each) {
    Part& part = part_of(each);
    part.weight = std::exp((part.weight - highest) / attention.temperature);
    normaliser += part.weight;
  }
  values_.clear();
  for (std::int64_t each = order; each > 0; --each) {
    const auto& [children, part_weight, total] = part_of(each);
    std::swap(values_, longer_);
    values_.assign(static_cast<std::size_t>(std::max<std::int64_t>(children.size(), 0)), 0.0);
    for (std::size_t index = 0; index < longer_.size(); ++index) {
      const std::int64_t child = part_of(each + 1).children.low + static_cast<std::int64_t>(index);
      const std::int64_t target = trie.suffix_link(each + 2, child) - children.low;
      if (0 <= target && target < std::ssize(values_)) values_[static_cast<std::size_t>(target)] += longer_[index];
    }
    const Level& level = trie.level(each + 1);
    const double weight = part_weight / normaliser;
    for (std::size_t index = 0; index < values_.size(); ++index) {
      const auto count = static_cast<double>(positive_count(level, children.low + static_cast<std::int64_t>(index)));
      values_[index] += weight * (count / total);
    }
  }
  level_ = &trie.level(2);
  low_ = part_of(1).children.low;
  total_ = 1.0;
}

/// Raise masses to the power of 1 / temperature, the largest one being 1.
void Masses::temper(double temperature) {
  total_ = 0.0;
  double largest = 0.0;
  for (double value : values_) largest = std::max(largest, value);
  if (!(largest > 0.0)) return;  // never, unless the file is damaged
  for (double& value : values_) {
    value = std::pow(value / largest, 1.0 / temperature);
    total_ += value;
  }
}

std::size_t Masses::max_entries(const DistributionOptions& options) const {
  const std::size_t size = values_.size();
  return options.max_candidates > 0 ? std::min(size, static_cast<std::size_t>(options.max_candidates)) : size;
}

Distributions::Span Masses::append_to(Distributions& out, const DistributionOptions& options) {
  const std::size_t first = out.tokens.size(), num_kept = max_entries(options);
  std::size_t last_kept = values_.size();  // the least of those that are kept
  double threshold = -1.0;
  const auto is_kept = [&](std::size_t index) {
    return values_[index] > threshold || (values_[index] == threshold && index <= last_kept);
  };
  if (num_kept < values_.size()) {
    const auto is_larger = [&](std::size_t left, std::size_t right) {
      return values_[left] > values_[right] || (values_[left] == values_[right] && left < right);
    };
    largest_.resize(num_kept);  // a heap, the least of them in front
    std::iota(largest_.begin(), largest_.end(), std::size_t{0});
    std::make_heap(largest_.begin(), largest_.end(), is_larger);
    for (std::size_t index = num_kept; index < values_.size(); ++index) {
      if (values_[index] <= values_[largest_.front()]) continue;
      std::pop_heap(largest_.begin(), largest_.end(), is_larger);
      largest_.back() = index;
      std::push_heap(largest_.begin(), largest_.end(), is_larger);
    }
    last_kept = largest_.front();
    threshold = values_[last_kept];
    total_ = 0.0;
    for (std::size_t index = 0; index < values_.size(); ++index) {
      if (is_kept(index)) total_ += values_[index];
    }
  }
  if (!(total_ > 0.0)) return {first, first};
  for (std::size_t index = 0; index < values_.size(); ++index) {
    if (!is_kept(index)) continue;
    const auto probability = static_cast<float>(values_[index] / total_);
    if (!(probability > 0.0f)) continue;
    out.tokens.push_back(static_cast<std::uint32_t>(level_->token(low_ + static_cast<std::int64_t>(index))));
    out.probabilities.push_back(probability);
  }
  return {first, out.tokens.size()};
}

Token Masses::argmax() const {
  std::ptrdiff_t best = -1;
  double most = 0.0;
  for (std::size_t index = 0; index < values_.size(); ++index) {
    if (values_[index] > most) best = static_cast<std::ptrdiff_t>(index), most = values_[index];
  }
  return best < 0 ? -1 : level_->token(low_ + best);
}

Context context_after(const Trie& trie, Context context, Token token, bool is_mixed) {
  if (is_mixed) return trie.extend(context, token);
  const std::int64_t child = trie.find_child(trie.level(context.order + 1), trie.children(context), token);
  return child < 0 ? Context{} : trie.shift(context, child);  // found, unless the file is damaged
}

}  // namespace speculant
