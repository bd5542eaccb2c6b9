#include "drafter.hpp"

#include <algorithm>
#include <deque>
#include <numeric>
#include <string>
#include <utility>

#include "worker_pool.hpp"

namespace speculant {
namespace {

// Bytes that a sequence is said to take apart from what grows: its object, and the session's of a server. Rounded up; a
// guess.
constexpr std::int64_t kObjectBytes = 4'096;

// Tokens that are added while locks are held, so that others wait for about half a millisecond: one of a prompt takes
// about half a microsecond, one that is learned from about fifteen. tests/perf/locks.py measures the holds.
constexpr std::size_t kMostTaken = 1'024, kMostLearned = 32;

// Options whose settings are kept. Clients may ask for anything, so nothing is kept for ever. A guess: a client sends
// the same options again and again.
constexpr std::size_t kMaxSettings = 256;
// Nodes of trees that are asked for at least where threads help: fewer are drafted before another thread has woken up,
// which takes 30 to 80 us. A node of a tree takes 2 us, and twice as long after a pause, in which other work has filled
// the caches; one that is drawn 0.3 and a most frequent one 0.1, so those are never divided.
constexpr int kSpreadNodes = 48;

int budget_of(const DraftRequest& request) { return std::clamp(request.budget, 0, kMaxNodes); }

std::span<const Token> take_first(std::span<const Token>& tokens, std::size_t most) {
  const auto part = tokens.first(std::min(tokens.size(), most));
  tokens = tokens.subspan(part.size());
  return part;
}

}  // namespace

void LearnedMemory::add(std::span<const Token> tokens) {
  std::int64_t end = -1;
  do {
    const auto part = take_first(tokens, kMostTaken);
    Exclusive hold(lock);
    if (history.size() != end) history.append(std::array{kSeparator});
    history.append(part);
    end = history.size();
  } while (!tokens.empty());
}

/// A tree drafter that is this call's alone.
class Drafter::Loan {
 public:
  explicit Loan(Drafter& drafter) : drafter_(drafter) {
    std::lock_guard guard(drafter.mutex_);
    if (drafter.trees_.empty()) return;
    tree_ = std::move(drafter.trees_.back());
    drafter.trees_.pop_back();
  }
  Loan(const Loan&) = delete;
  ~Loan() {
    if (!tree_) return;
    std::lock_guard guard(drafter_.mutex_);
    drafter_.trees_.push_back(std::move(tree_));
  }
  TreeDrafter& operator*() {
    if (!tree_) tree_ = std::make_unique<TreeDrafter>();
    return *tree_;
  }

 private:
  Drafter& drafter_;
  std::unique_ptr<TreeDrafter> tree_;
};

Sequence::Sequence(std::shared_ptr<LearnedMemory> memory, std::int64_t max_tokens, bool learns)
    : memory(std::move(memory)), history(max_tokens, kSessionChains), learns(learns), rows_(this->memory->rows) {}

std::int64_t Sequence::num_bytes() const { return kObjectBytes + history.num_bytes() + rows_.num_bytes(); }

Sources Sequence::sources(const Graph& graph) const {
  auto enabled = settings.sources;
  if (graph.trie.max_order() == 0) enabled[static_cast<std::size_t>(Source::kCorpus)] = false;
  if (graph.model.empty()) enabled[static_cast<std::size_t>(Source::kNeural)] = false;
  return {graph.trie, history, size(), memory->history, rows_, graph.model, enabled};
}

void Sequence::add_rows(std::span<const std::int64_t> nodes, std::span<const Token> tokens, std::size_t width) {
  const auto num_nodes = std::ssize(draft.tokens);
  if (std::any_of(nodes.begin(), nodes.end(), [=](std::int64_t node) { return node < 0 || node > num_nodes; })) {
    throw RequestError("the latest draft has nodes 0 to " + std::to_string(num_nodes) + "; send rows of those");
  }
  if (size() == 0) return;
  const std::vector<Token> end = history.latest(2);
  const Token last = end.back(), before = end.size() == 2 ? end.front() : kNoToken;
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    const auto token_of = [&](std::int64_t node) {
      return node > 0 ? draft.tokens[static_cast<std::size_t>(node) - 1] : last;
    };
    const std::int64_t node = nodes[index];
    Row& row = new_rows_.emplace_back();
    row.last = token_of(node);
    row.before = node > 0 ? token_of(draft.parents[static_cast<std::size_t>(node) - 1]) : before;
    row.tokens.fill(-1);
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(index * width), std::min<std::size_t>(width, kRowWidth),
                row.tokens.begin());
  }
}

void Sequence::accept(TreeDrafter& drafter, const Graph& graph, Calibration& calibration, Addition& addition) {
  if (addition.tokens.empty()) return;
  const bool is_first = !std::exchange(addition.has_begun, true);
  if (is_first) {
    learn(drafter, graph, calibration);
    addition.is_prompt |= size() == 0;
    if (history.is_small()) history.reserve(std::ssize(addition.tokens));
  }
  const bool calibrates = !addition.is_prompt && (is_calibrated || settings.is_calibrated);
  const auto part = take_first(addition.tokens, calibrates ? kMostLearned : kMostTaken);
  if (addition.is_prompt) num_prompt_tokens_ = size() + std::ssize(part);
  // Rows are taken after learning, and the next draft is made from them.
  const bool waits = calibrates && addition.may_wait && is_first && addition.tokens.empty() && new_rows_.empty();
  if (waits) {
    unlearned_.assign(part.begin(), part.end());
    unlearned_context_ = context;
  }
  if (calibrates && !waits) {
    Exclusive rates(calibration.lock);
    Shared tenant(memory->lock);
    drafter.accept(sources(graph), calibration, history, context, part, true, !is_first);
  } else {
    drafter.accept(sources(graph), calibration, history, context, part, false, !is_first);
  }
  if (!addition.tokens.empty()) return;
  // Only now: a row holds the very token that was accepted, and reliability of rows is learned from older ones.
  if (!new_rows_.empty()) {
    Exclusive tenant(memory->lock);
    for (const Row& row : new_rows_) {
      // Of a sequence that nobody learns from, others must not see what it brings.
      learns ? memory->rows.put(row.before, row.last, row.tokens) : rows_.put(row.before, row.last, row.tokens);
    }
    new_rows_.clear();
  }
  draft.clear();
}

void Sequence::learn(TreeDrafter& drafter, const Graph& graph, Calibration& calibration) {
  if (unlearned_.empty()) return;
  Exclusive rates(calibration.lock);
  Shared tenant(memory->lock);
  Sources before = sources(graph);
  before.session_size -= std::ssize(unlearned_);
  drafter.learn(before, calibration, unlearned_context_, unlearned_);
  unlearned_.clear();
}

bool Sequence::agrees(std::int64_t position, std::span<const Token> tokens) const {
  const std::vector<Token> kept = history.latest(size() - position);
  const std::int64_t first = size() - std::ssize(kept);
  for (std::int64_t index = std::max<std::int64_t>(first - position, 0); index < std::ssize(tokens); ++index) {
    if (position + index >= size()) break;
    const Token token = tokens[static_cast<std::size_t>(index)];
    if (kept[static_cast<std::size_t>(position + index - first)] != as_kept(token)) return false;
  }
  return true;
}

std::vector<Token> Sequence::finish() {
  std::vector<Token> tokens;
  {
    Exclusive hold(lock);
    const std::int64_t num_accepted = size() - num_prompt_tokens_;
    if (!learns || memory->is_forgotten || num_accepted <= 0) return {};
    // The last few tokens of the prompt make the first ones of an answer known to a later sequence whose prompt ends
    // alike.
    tokens = history.latest(num_accepted + kMaxMatch);
    unlearned_.clear();  // the memory would know them before
  }
  memory->add(tokens);
  return tokens;
}

void Drafter::accept(Sequence& sequence, std::span<const Token> tokens, bool is_prompt) {
  Addition addition{tokens, is_prompt};
  while (!addition.tokens.empty()) {
    Exclusive hold(sequence.lock);
    accept_part(sequence, addition);
  }
}

void Drafter::learn_soon(std::span<const std::shared_ptr<Sequence>> sequences) {
  if (sequences.empty()) return;
  std::vector<std::shared_ptr<Sequence>> learned;  // some of which may end here
  {
    std::lock_guard guard(mutex_);
    unlearned_.insert(unlearned_.end(), sequences.begin(), sequences.end());
    learned.swap(learned_);
  }
  learner_.wake();
}

void Drafter::learn_rest() {
  Loan tree(*this);
  for (;;) {
    std::lock_guard turn(learning_);
    std::shared_ptr<Sequence> sequence;
    {
      std::lock_guard guard(mutex_);
      if (unlearned_.empty()) return;
      sequence = std::move(unlearned_.back());
      unlearned_.pop_back();
    }
    {
      Exclusive hold(sequence->lock);
      sequence->learn(*tree, graph, *calibration);
    }
    std::lock_guard guard(mutex_);
    learned_.push_back(std::move(sequence));
  }
}

/// Take what comes with a request, and go by its settings from now on; the sequence's lock is held.
void Drafter::begin(const DraftRequest& request, const DraftSettings& settings, TreeDrafter& tree) {
  Sequence& sequence = *request.sequence;
  if (!request.accepted.empty() && std::cmp_equal(sequence.size(), request.accepted_at)) {
    Addition addition{.tokens = request.accepted, .is_prompt = false, .may_wait = true};
    sequence.accept(tree, graph, *calibration, addition);
  }
  sequence.adopt(settings.sequence);
}

std::int64_t Drafter::num_read() {
  std::lock_guard guard(mutex_);
  return std::accumulate(trees_.begin(), trees_.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& tree) { return sum + tree->num_read(); });
}

void Drafter::accept_part(Sequence& sequence, Addition& addition) {
  Loan tree(*this);
  sequence.accept(*tree, graph, *calibration, addition);
}

std::shared_ptr<Sequence> Drafter::open(std::shared_ptr<LearnedMemory> memory, bool learns) {
  auto sequence = std::make_shared<Sequence>(std::move(memory), max_session_tokens_, learns);
  sequence->settings = settings_of("")->sequence;
  return sequence;
}

std::shared_ptr<Sequence> Drafter::begin_after(std::span<const Token> tokens, const DraftSettings& settings) {
  auto sequence = open(std::make_shared<LearnedMemory>(1), false);
  if (settings.is_from_graph())
    tokens = tokens.last(std::min(tokens.size(), static_cast<std::size_t>(graph.trie.max_order())));
  accept(*sequence, tokens, true);
  return sequence;
}

std::shared_ptr<const DraftSettings> Drafter::settings_of(const std::string& options) {
  {
    std::lock_guard guard(mutex_);
    const auto known = settings_.find(options);
    if (known != settings_.end()) return known->second;
  }
  auto found = std::make_shared<const DraftSettings>(read_settings_(options));
  std::lock_guard guard(mutex_);
  if (settings_.size() >= kMaxSettings) settings_.clear();
  return settings_.insert_or_assign(options, std::move(found)).first->second;
}

DraftBatch Drafter::draft(std::span<const DraftRequest> requests, const DraftSettings& settings,
                          std::size_t max_entries) {
  DraftBatch batch;
  batch.drafts.resize(requests.size());
  if (settings.is_from_graph()) {
    draft_from_graph(requests, settings, max_entries, batch);
  } else {
    draft_trees(requests, settings, batch);
  }
  for (std::size_t index = 0; index < requests.size(); ++index) {
    batch.drafts[index].ended_early = std::cmp_less(batch.drafts[index].size(), budget_of(requests[index]));
  }
  return batch;
}

/// Draft by the methods that know the graph alone.
void Drafter::draft_from_graph(std::span<const DraftRequest> requests, const DraftSettings& settings,
                               std::size_t max_entries, DraftBatch& batch) {
  std::vector<GraphDraft> wanted;
  Loan tree(*this);
  for (const DraftRequest& request : requests) {
    Sequence& sequence = *request.sequence;
    Exclusive hold(sequence.lock);
    begin(request, settings, *tree);
    wanted.push_back({.context = sequence.context,
                      .budget = budget_of(request),
                      .seed = request.seed,
                      .position = request.position.value_or(static_cast<std::uint64_t>(sequence.size()))});
  }
  if (settings.method == Method::kMostFrequent) {
    draft_greedy(graph.trie, wanted);
  } else if (settings.siblings == Siblings::kNone || settings.omits_proposals) {
    // Without q no rule has any use for siblings.
    draw_chains(graph.trie, wanted, settings.distribution, settings.is_coupled,
                settings.omits_proposals ? 0 : max_entries, batch.distributions);
  } else {
    const DrawnTreeShape shape{settings.siblings == Siblings::kIndependent, settings.max_branches, settings.max_depth};
    draw_trees(graph.trie, wanted, settings.distribution, shape, max_entries, batch.distributions);
  }
  for (std::size_t index = 0; index < wanted.size(); ++index) {
    batch.drafts[index] = std::move(wanted[index].draft);
    Exclusive hold(requests[index].sequence->lock);
    requests[index].sequence->note(batch.drafts[index]);
  }
}

void Drafter::draft_trees(std::span<const DraftRequest> requests, const DraftSettings& settings, DraftBatch& batch) {
  int num_nodes = 0;
  for (const DraftRequest& request : requests) num_nodes += budget_of(request);
  const int num_threads = num_nodes < kSpreadNodes ? 1 : num_threads_;
  std::deque<Loan> trees;
  for (int each = 0; each < num_threads; ++each) trees.emplace_back(*this);
  spread(num_threads, requests.size(), [&](std::size_t worker, std::size_t index) {
    Sequence& sequence = *requests[index].sequence;
    const TreeShape shape{budget_of(requests[index]), std::min(settings.max_depth, kMaxDepth),
                          std::min(settings.max_branches, kMaxBranches)};
    const double least = settings.fills_budget ? 0.0 : requests[index].least_probability;
    Exclusive hold(sequence.lock);
    begin(requests[index], settings, *trees[worker]);
    Shared rates(calibration->lock);
    Shared tenant(sequence.memory->lock);
    const auto pause = [&] {
      tenant.give(), rates.give(), hold.give();
      hold.take(), rates.take(), tenant.take();
    };
    const std::int64_t size = sequence.size();
    (*trees[worker])
        .draft(sequence.sources(graph), *calibration, sequence.context, shape, least, pause, batch.drafts[index]);
    // Of a sequence that went on meanwhile, nothing can be said about this draft.
    if (sequence.size() == size) sequence.note(batch.drafts[index]);
  });
}

}  // namespace speculant
