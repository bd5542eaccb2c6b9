#include "contexts.hpp"

#include <algorithm>

#include "calibration.hpp"

namespace speculant {
namespace {

// Tokens that must match before the token that differs. 1 and 3 are up to 0.2 % worse (docs/experiments.md, "gaps").
constexpr std::int64_t kMinSkipGramMatch = 2;
// Maximum number of contexts of a position before the last ones (neural, skip-gram, two of target top-k) join:
// Calibration::learn has space for 128. Five graphs of orders 1 to 10 and matches of up to 32 tokens give at most 113
// contexts. Of more, the shortest are left out.
constexpr std::size_t kMaxContexts = 122;
// The neural model comes before contexts of this length. With 4 it gains less (docs/experiments.md, "a neural model").
constexpr std::int64_t kNeuralBefore = 3;
// Orders of the graph whose most frequent successors the model scores, too. 3 gains nothing (the same section).
constexpr std::int64_t kAskedOrders = 2;
// The neural models of further layers run only if this many times the least share is left. With 1, two layers give up
// to 0.8 % more tokens in 1.1 to 1.2 times the time (docs/experiments.md, "neural models of several layers").
constexpr double kFurtherModels = 4.0;
static_assert(kLookBack >= kMaxMatch && kLookBack >= neural::kLookBack);

/// Count a token after `start`.
void count_token(std::vector<Successor>& successors, std::size_t start, Token token, std::uint32_t count = 1) {
  const auto known = std::find_if(successors.begin() + static_cast<std::ptrdiff_t>(start), successors.end(),
                                  [=](const Successor& each) { return each.token == token; });
  if (known != successors.end()) {
    known->count += count;
  } else {
    successors.push_back({token, count});
  }
}

/// Write the most frequent children, among equals the lowest ids; return their number.
std::size_t most_frequent(const Level& level, Range children, std::span<Successor, kTopSuccessors> top) {
  const std::int64_t total = std::max<std::int64_t>(level.total(children), 0);
  std::size_t kept = 0;
  std::int64_t before = level.cumulative(children.low);
  for (std::int64_t child = children.low; child < children.high; ++child) {
    const std::int64_t after = level.cumulative(child + 1);
    // In a damaged file a count may be negative, or larger than the total.
    const std::int64_t count = std::clamp<std::int64_t>(after - before, 0, total);
    before = after;
    if (kept == top.size() && count <= top[kept - 1].count) continue;
    std::size_t rank = std::min(kept, top.size() - 1);
    for (; rank > 0 && top[rank - 1].count < count; --rank) top[rank] = top[rank - 1];
    top[rank] = {level.token(child), static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(child)};
    kept = std::min(kept + 1, top.size());
  }
  return kept;
}

}  // namespace

std::span<const Successor> SuccessorCache::top(const Graphs& graphs, std::size_t graph, Context context,
                                               Range children) {
  // Sequences may have different graphs in the same position: those of their tenants' learned text. A key has only
  // seven bits of a graph's id, so the whole id is compared, too. A level has fewer than 2^32 records, and a graph
  // fewer than 2^16 levels.
  const std::uint64_t id = graphs.id(graph);
  const std::int64_t key = static_cast<std::int64_t>(id & 0x7F) << 56 | context.order << 40 | context.node;
  const std::size_t set = (static_cast<std::uint64_t>(key) * kHashFactor >> 40) % kSets;
  auto& keys = sets_[set].keys;
  auto place = static_cast<std::size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
  const bool has_key = place != kPlaces;
  if (!has_key || tops_[set * kPlaces + place].graph != id) {
    if (children.size() > num_allowed_) return {};
    num_allowed_ -= children.size(), num_read_ += children.size();
    if (!has_key) place = oldest_[set]++ % kPlaces;
    Top& top = tops_[set * kPlaces + place];
    most_frequent(graphs[graph].level(context.order + 1), children, top.successors);
    top.graph = id, keys[place] = key;
  }
  return tops_[set * kPlaces + place].successors;
}

void SuffixMatches::begin(const SessionHistory& history, std::int64_t size, bool is_enabled) {
  history_ = &history, size_ = size;
  chain_ = is_enabled ? 0 : kNumChains;
  matches_.clear(), counted_.clear();
  next_ = 0;
}

bool SuffixMatches::find_below(std::int64_t longest, const Token* end) {
  if (chain_ == kNumChains || longest >= shortest_found()) return false;
  const SessionHistory& history = *history_;
  const std::int64_t too_long = shortest_found();
  const std::size_t first = matches_.size();
  history.for_each_match(chain_, end, size_, max_matches_, kMaxMatch, [&](std::int64_t position, std::int64_t length) {
    if (position == size_ - 1 || length >= too_long) return;
    std::size_t rank = matches_.size();
    matches_.emplace_back();
    for (; rank > first && matches_[rank - 1].length < length; --rank) matches_[rank] = matches_[rank - 1];
    matches_[rank] = {position + 1, length};
  });
  ++chain_;
  return true;
}

std::int64_t SuffixMatches::add_next(std::vector<Successor>& successors) {
  const std::int64_t length = this->length();
  for (; next_ < matches_.size() && matches_[next_].length == length; ++next_) {
    const Token token = history_->at(matches_[next_].position);
    if (token >= 0) count_token(counted_, 0, token);
  }
  successors.insert(successors.end(), counted_.begin(), counted_.end());
  return static_cast<std::int64_t>(next_);
}

/// Add a context of the successors that were added since the last one; do nothing if there are none.
void ContextCollector::close(const Calibration& calibration, MatchedContext context) {
  context.first = found_.first_open();
  context.last = found_.successors.size();
  if (context.first == context.last) return;
  if (context.source != Source::kCorpus) context.distinct = static_cast<std::int64_t>(context.last - context.first);
  context.kind = Calibration::kind_of(context);
  context.backoff = calibration.backoff(context.kind);
  left_ *= context.backoff;
  found_.contexts.push_back(context);
}

const MatchedContexts& ContextCollector::collect(const Sources& sources, const Calibration& calibration,
                                                 const Token* end, Contexts contexts, double least_share) {
  found_.clear();
  left_ = 1.0;
  session_.begin(sources.session, sources.session_size, sources.has(Source::kSession));
  learned_.begin(sources.learned, sources.learned.size(), sources.has(Source::kLearned));
  for (std::size_t graph = 0; graph < sources.graphs.size(); ++graph) {
    if (!sources.has_graph(graph)) contexts[graph] = {};
  }
  sources.graphs.prefetch_all_children(contexts);
  std::array<std::int64_t, kMaxGraphs> totals_before;
  totals_before.fill(-1);
  std::int64_t longest;
  const Contexts at_first = contexts;
  bool has_asked = !sources.has(Source::kNeural), has_short_ones = false;
  const auto add_matches = [&](SuffixMatches& matches, Source source) {
    const std::int64_t length = matches.length(), total = matches.add_next(found_.successors);
    close(calibration, {.source = source, .length = length, .total = total, .occurrences = total});
  };
  // Sequence, graphs and learned text list their contexts by length; the longest of all is added next.
  while (found_.contexts.size() < kMaxContexts && left_ >= kSmallestShare) {
    const std::size_t graph = sources.graphs.longest(contexts);
    Context& context = contexts[graph];
    do {  // search for shorter matches only once longer contexts leave them a share
      longest = std::max({context.order, session_.length(), learned_.length()});
    } while (session_.find_below(longest, end) || learned_.find_below(longest, end));
    if (longest <= kNeuralBefore && !has_asked) {
      has_asked = true;
      double least = least_share;
      for (std::size_t of_model = 0; of_model < sources.graphs.size(); ++of_model) {
        if (sources.graphs.model(of_model).empty()) continue;
        if (left_ >= least) add_proposals(sources, calibration, end, of_model, at_first[of_model]);
        least = kFurtherModels * std::max(least_share, kSmallestShare);
      }
    } else if (longest <= 2 && !has_short_ones) {
      has_short_ones = true;
      if (sources.has(Source::kSkipGram)) add_skip_gram(sources, calibration, end);
      if (sources.has(Source::kTargetRows)) {
        for (int length : {2, 1}) add_top_k(sources.rows, calibration, end, length);
      }
    } else if (longest == 0) {
      break;
    } else if (session_.length() == longest) {
      add_matches(session_, Source::kSession);
    } else if (context.order == longest) {
      totals_before[graph] = add_children(sources, calibration, graph, context, totals_before[graph]);
      context = sources.graphs[graph].shorter(context);
    } else {
      add_matches(learned_, Source::kLearned);
    }
  }
  return found_;
}

/// Add a context of a graph, unless its count equals `total_before`: then it occurs exactly where the one before does.
/// Return its count.
std::int64_t ContextCollector::add_children(const Sources& sources, const Calibration& calibration, std::size_t graph,
                                            Context context, std::int64_t total_before) {
  const Trie& trie = sources.graphs[graph];
  const Range children = trie.children(context);
  if (children.empty() || children.size() > trie.vocabulary_size()) return total_before;
  const std::int64_t total = trie.level(context.order + 1).total(children);
  if (total <= 0 || total == total_before) return total_before;
  const auto top = top_children(sources.graphs, graph, context);
  found_.successors.insert(found_.successors.end(), top.begin(), top.end());
  close(calibration, {.source = Source::kCorpus,
                      .length = context.order,
                      .total = total,
                      .occurrences = total,
                      .distinct = children.size(),
                      .node = context.node,
                      .graph = static_cast<std::uint8_t>(graph)});
  return total;
}

/// The most frequent successors of a context, valid until the next call; empty if there are too many to read.
std::span<const Successor> ContextCollector::top_children(const Graphs& graphs, std::size_t graph, Context context) {
  const Trie& trie = graphs[graph];
  const Range children = trie.children(context);
  if (children.empty() || children.size() > trie.vocabulary_size()) return {};
  if (children.size() > static_cast<std::int64_t>(kTopSuccessors)) {
    return successors.top(graphs, graph, context, children);
  }
  return std::span(top_).first(most_frequent(trie.level(context.order + 1), children, top_));
}

/// Add the tokens that the neural model of a graph finds probable: among its frequent tokens, the successors found so
/// far, and the successors of short contexts in its graph.
void ContextCollector::add_proposals(const Sources& sources, const Calibration& calibration, const Token* end,
                                     std::size_t graph, Context context) {
  known_.clear();
  for (const Successor& each : found_.successors) known_.push_back(each.token);
  for (; context.order > 0; context = sources.graphs[graph].shorter(context)) {
    if (context.order > kAskedOrders) continue;
    for (const Successor& each : top_children(sources.graphs, graph, context)) known_.push_back(each.token);
  }
  const auto proposals = proposer_.propose(sources.graphs.model(graph), end, known_);
  std::uint32_t most = 0;
  for (const auto& [token, count] : proposals) {
    found_.successors.push_back({token, count});
    most = std::max(most, count);
  }
  close(
      calibration,
      {.source = Source::kNeural, .length = neural::confidence_class(most), .total = neural::kWhole, .occurrences = 1});
}

/// Add the positions that match except for the last token.
void ContextCollector::add_skip_gram(const Sources& sources, const Calibration& calibration, const Token* end) {
  const SessionHistory& history = sources.session;
  const std::int64_t size = sources.session_size;
  std::int64_t total = 0, longest = 0;
  const std::size_t start = found_.first_open();
  const auto add = [&](std::int64_t position, std::int64_t length) {
    if (length < kMinSkipGramMatch || position + 1 >= size - 1 || history.at(position + 1) == end[-1]) return;
    longest = std::max(longest, length);
    ++total;
    const Token token = history.at(position + 2);
    if (token >= 0) count_token(found_.successors, start, token);
  };
  history.for_each_match(kNumChains - 1, end - 1, size, kMaxMatches, kMaxMatch - 1, add);
  close(calibration, {.source = Source::kSkipGram, .length = longest, .total = total, .occurrences = total});
}

/// Add the target's latest rows. In a row the first token counts most and each further one half as much; an older row
/// counts half as much as the next newer one. Equal weights for old and new rows are 0.1 % worse (docs/experiments.md,
/// "rows of the target"); the halves within a row are a guess.
void ContextCollector::add_top_k(const TargetTopKOverlay& rows, const Calibration& calibration, const Token* end,
                                 int length) {
  const TargetTopK::Rows* found = rows.find(end, length);
  if (found == nullptr) return;
  const std::size_t start = found_.first_open();
  std::int64_t total = 0, num_rows = 0;
  std::uint32_t newest_weight = 1 << (kRowWidth + kRowDepth - 2);
  for (const auto& row : *found) {
    if (row.front() < 0) break;
    ++num_rows;
    std::uint32_t weight = newest_weight;
    for (Token token : row) {
      if (token < 0) break;
      count_token(found_.successors, start, token, weight);
      total += weight;
      weight /= 2;
    }
    newest_weight /= 2;
  }
  close(calibration, {.source = Source::kTargetRows, .length = length, .total = total, .occurrences = num_rows});
}

}  // namespace speculant
