#include "sequence.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "errors.hpp"

namespace speculant {
namespace {

// Bytes counted for the fixed part of a sequence: its object, and the server's session. Rounded up; a guess.
constexpr std::int64_t kObjectBytes = 4'096;

// Tokens added per hold of the locks, so that other threads wait for about half a millisecond. A token of a prompt
// takes about half a microsecond, a learned token about fifteen. tests/perf/locks.py measures the holds.
constexpr std::size_t kMostTaken = 1'024, kMostLearned = 32;

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

Sequence::Sequence(std::shared_ptr<LearnedMemory> memory, Graphs graphs, std::int64_t max_tokens, bool learns)
    : memory(std::move(memory)),
      graphs(std::move(graphs)),
      history(max_tokens, kSessionChains),
      learns(learns),
      rows_(this->memory->rows) {}

std::int64_t Sequence::num_bytes() const { return kObjectBytes + history.num_bytes() + rows_.num_bytes(); }

Sources Sequence::sources() const {
  auto enabled = settings.sources;
  if (!graphs.has_named()) enabled[static_cast<std::size_t>(Source::kCorpus)] = false;
  if (graphs.first_model().empty()) enabled[static_cast<std::size_t>(Source::kNeural)] = false;
  return {graphs, history, size(), memory->history, rows_, enabled};
}

void Sequence::add_top_k(std::span<const std::int64_t> nodes, std::span<const Token> tokens, std::size_t width) {
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

void Sequence::accept(TreeDrafter& drafter, Calibration& calibration, Addition& addition) {
  if (addition.tokens.empty()) return;
  const bool is_first = !std::exchange(addition.has_begun, true);
  if (is_first) {
    learn(drafter, calibration);
    addition.is_prompt |= size() == 0;
    if (history.is_small()) history.reserve(std::ssize(addition.tokens));
  }
  bool calibrates = !addition.is_prompt && (is_calibrated || settings.is_calibrated);
  std::size_t most = calibrates ? kMostLearned : kMostTaken;
  if (calibrates && addition.tokens.size() > addition.most_learned) {
    calibrates = false, most = std::min(kMostTaken, addition.tokens.size() - addition.most_learned);
  }
  const auto part = take_first(addition.tokens, most);
  if (addition.is_prompt) num_prompt_tokens_ = size() + std::ssize(part);
  // With rows, learning can't wait: rows are taken after learning, and the next draft uses them.
  const bool waits = calibrates && addition.may_wait && is_first && addition.tokens.empty() && new_rows_.empty();
  if (waits) {
    unlearned_.assign(part.begin(), part.end());
    unlearned_contexts_ = contexts;
    std::swap(unlearned_draft_, draft);
  }
  if (calibrates && !waits) {
    Exclusive graph(calibration.lock);
    Shared tenant(memory->lock);
    if (!addition.is_inside) calibration.learn_paths(draft, part);
    drafter.accept(sources(), calibration, history, contexts, part, true, addition.is_inside);
    addition.is_inside = true;
  } else {
    drafter.accept(sources(), calibration, history, contexts, part, false, false);
    draft.probabilities.clear();  // the draft was made for the end before these tokens
  }
  if (!addition.tokens.empty()) return;
  // Only now: a row contains the accepted token itself, and the reliability of rows is learned from older rows.
  if (!new_rows_.empty()) {
    Exclusive tenant(memory->lock);
    for (const Row& row : new_rows_) {
      // Other sequences must not see rows of a sequence that is not learned.
      learns ? memory->rows.put(row.before, row.last, row.tokens) : rows_.put(row.before, row.last, row.tokens);
    }
    new_rows_.clear();
  }
  draft.clear();
}

void Sequence::learn(TreeDrafter& drafter, Calibration& calibration) {
  if (unlearned_.empty()) return;
  Exclusive graph(calibration.lock);
  Shared tenant(memory->lock);
  Sources before = sources();
  before.session_size -= std::ssize(unlearned_);
  calibration.learn_paths(unlearned_draft_, unlearned_);
  drafter.learn(before, calibration, unlearned_contexts_, unlearned_);
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
    // Include the last few tokens of the prompt, so that a later sequence with a similar end of its prompt finds the
    // first tokens of the answer.
    tokens = history.latest(num_accepted + kMaxMatch);
    unlearned_.clear();  // learning would already find them in the memory
  }
  memory->add(tokens);
  return tokens;
}

}  // namespace speculant
