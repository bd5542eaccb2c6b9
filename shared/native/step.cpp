#include "step.hpp"

#include <algorithm>

namespace speculant {
namespace {

// Upper bounds for the size of a response: the base, and the bytes per sequence, node and entry of a distribution. They
// follow from drafter.proto, whose numbers have fixed widths. tests/support/step_reference.py has the same numbers.
constexpr std::size_t kFixedBytes = 128, kSequenceBytes = 28, kNodeBytes = 16, kEntryBytes = 8;

/// Approximate upper bound of a step's time: 0.5 us per token of a prompt, 4 us per node, 20 us per sequence.
/// (Measured: a node takes 2 us, and twice as long with cold caches.) A learned token takes longer, but a step has only
/// a few of them, fewer than any prompt has tokens.
std::int64_t expected_ns(const wire::DraftRequest& request) {
  return static_cast<std::int64_t>(20'000 * request.context_lengths.size() + 500 * request.context_tokens.size() +
                                   4'000 * wire::sum(request.node_budgets));
}

// Maximum number of accepted tokens that a step learns: the number that fits into one hold of the locks. Only engines
// that requested no drafts for a while send more. Then a batch would wait for half a millisecond per sequence.
constexpr std::size_t kMostLearned = 32;

std::int64_t num_bytes_of(Sequence& sequence) { return Exclusive(sequence.lock), sequence.num_bytes(); }

}  // namespace

bool StepHandler::run(Step& step, const Tenants& tenants, StepCallbacks& host, std::int64_t most_ns) {
  check(step, host);
  if (expected_ns(step.request) > most_ns) return false;
  std::vector<std::shared_ptr<Drafter>> learning;
  {
    std::lock_guard guard(mutex_);
    learning.swap(learning_);
  }
  // Wait for deferred learning, so that drafts do not depend on its duration. Usually it is done by now.
  for (const auto& drafter : learning) drafter->learn_rest();
  for (std::size_t index = 0; index < step.size(); ++index) take(step, index, tenants);
  for (Step::Part& part : step.parts) {  // dropped meanwhile, for example for others of this step
    if (part.session && !part.session->is_open) part.lose();
  }
  draft_all(step, host);
  learn_soon(step);
  return true;
}

/// Count the memory of sequences that took tokens with their draft requests, and schedule learning from them.
void StepHandler::learn_soon(const Step& step) {
  std::vector<std::pair<std::shared_ptr<Drafter>, std::vector<std::shared_ptr<Sequence>>>> by_drafter;
  for (const Step::Part& part : step.parts) {
    if (part.accepted.empty() || !part.session) continue;
    try {
      sessions_->account(*part.session, num_bytes_of(*part.session->sequence), step.now_ns);
    } catch (const LimitError&) {  // it has ended; the next step reports it
    }
    const auto& drafter = part.session->graph.drafter;
    if (by_drafter.empty() || by_drafter.back().first != drafter) by_drafter.push_back({drafter, {}});
    by_drafter.back().second.push_back(part.session->sequence);
  }
  for (const auto& [drafter, sequences] : by_drafter) {
    drafter->learn_soon(sequences);
    std::lock_guard guard(mutex_);
    learning_.push_back(drafter);
  }
}

/// Add the new tokens of one sequence to its session in parts. Between parts, other threads may use or end the session.
void StepHandler::take(Step& step, std::size_t index, const Tenants& tenants) {
  const wire::DraftRequest& request = step.request;
  Step::Part& part = step.parts[index];
  if (request.session_ids[index] == 0 || part.session) return;
  part.status = SequenceStatus::kSessionLost;
  const std::shared_ptr<Session> session = sessions_->find(request.session_ids[index]);
  if (!session) return;
  // Checked first, because another client's step must not mark a session as used.
  if (tenants && std::find(tenants->begin(), tenants->end(), session->tenant) == tenants->end()) return;
  if (!sessions_->use(*session, step.now_ns)) return;

  Drafter& drafter = *session->graph.drafter;
  Sequence& sequence = *session->sequence;
  const std::vector<Token> tokens = tokens_of(step.context(index), drafter.vocabulary_size);
  std::uint64_t position = request.positions[index];
  Addition addition{tokens, false};
  const auto take_part = [&] {  // false: the session's text differs
    Exclusive hold(sequence.lock);
    const auto known = static_cast<std::uint64_t>(sequence.size());
    if (position < known && !sequence.agrees(static_cast<std::int64_t>(position), addition.tokens)) return false;
    part.session = session;
    part.generation = session->graph.generation;
    part.next_position = known;
    part.status = SequenceStatus::kOutOfSync;
    if (position > known || position + addition.tokens.size() < known) {
      addition.tokens = {};
      return true;
    }
    part.status = SequenceStatus::kOk;
    addition.tokens = addition.tokens.subspan(static_cast<std::size_t>(known - position));
    if (addition.tokens.empty()) return true;
    if (!addition.has_begun) {
      addition.is_prompt = session->is_in_prompt, addition.most_learned = kMostLearned;
      if (position == known) add_top_k(step, index, *session);
    }
    // Drafts use the rows, and rows are taken after learning. So a sequence with rows learns now.
    if (step.learns_later && !addition.is_prompt && addition.tokens.size() <= kMostLearned &&
        request.feedback_row_counts[index] == 0) {
      part.accepted.assign(addition.tokens.begin(), addition.tokens.end());
      part.next_position = known + part.accepted.size();
      addition.tokens = {};
      return true;
    }
    drafter.accept_part(sequence, addition);
    part.next_position = position = static_cast<std::uint64_t>(sequence.size());
    return true;
  };
  do {
    if (!take_part()) {
      part.lose();
      return sessions_->end(*session, SessionEnd::kDiverged);
    }
    if (addition.has_begun) sessions_->account(*session, num_bytes_of(sequence), step.now_ns);
  } while (!addition.tokens.empty() && session->is_open);
}

/// Take the target top-k rows of a sequence. Rows of an older draft can't be assigned, and rows of a repeated step were
/// already taken. Without a new token no draft was verified, and such rows would only accumulate.
void StepHandler::add_top_k(const Step& step, std::size_t index, Session& session) {
  const wire::DraftRequest& request = step.request;
  const std::size_t num_rows = request.feedback_row_counts[index], width = request.feedback_width;
  if (num_rows * width == 0 || request.feedback_draft_ids[index] != session.draft_id) return;
  const Step::Part& part = step.parts[index];
  const auto named = std::span(request.feedback_nodes).subspan(part.first_row, num_rows);
  const std::vector<std::int64_t> nodes(named.begin(), named.end());
  const auto ids = std::span(request.feedback_tokens).subspan(part.first_row * width, num_rows * width);
  session.sequence->add_top_k(nodes, tokens_of(ids, session.graph.drafter->vocabulary_size), width);
}

/// Draft for all accepted sequences, and for sequences without a session.
void StepHandler::draft_all(Step& step, StepCallbacks& host) {
  struct Group {
    ServedDrafter graph;
    std::vector<std::size_t> indices;
  };
  std::vector<Group> groups;
  std::vector<std::size_t> stateless;
  for (std::size_t index = 0; index < step.size(); ++index) {
    const Step::Part& part = step.parts[index];
    if (step.request.session_ids[index] == 0) {
      stateless.push_back(index);
    } else if (part.session && part.status == SequenceStatus::kOk) {
      const ServedDrafter& graph = part.session->graph;
      auto group = std::find_if(groups.begin(), groups.end(),
                                [&](const Group& each) { return each.graph.generation == graph.generation; });
      if (group == groups.end()) group = groups.insert(group, {graph, {}});
      group->indices.push_back(index);
    }
  }
  // Cut drafts before a response gets too large. If the refusal depended on the drawn tokens, the verifier would get
  // tokens that are not draws from q.
  const std::size_t fixed_bytes = kEnvelopeBytes + kFixedBytes + kSequenceBytes * step.size() +
                                  kNodeBytes * static_cast<std::size_t>(wire::sum(step.request.node_budgets));
  std::size_t max_entries = 1;
  if (limits_.max_message_bytes > fixed_bytes) {
    max_entries = std::max<std::size_t>((limits_.max_message_bytes - fixed_bytes) / kEntryBytes, 1);
  }
  max_entries = step.max_entries.value_or(max_entries);
  for (const Group& group : groups) draft_from(step, group.indices, group.graph, max_entries);
  if (!stateless.empty()) draft_from(step, stateless, host.graph_of(step.request.graph), max_entries);
}

/// Draft for the sequences of one graph; either all or none of them have sessions.
void StepHandler::draft_from(Step& step, const std::vector<std::size_t>& indices, const ServedDrafter& graph,
                             std::size_t& max_entries) {
  const wire::DraftRequest& request = step.request;
  Drafter& drafter = *graph.drafter;
  const auto settings = step.settings ? step.settings : drafter.settings_of(request.options.bytes);
  std::vector<SequenceDraft*> wanted;
  for (std::size_t index : indices) {
    Step::Part& part = step.parts[index];
    const auto tokens = step.context(index);
    if (part.session) {
      part.sequence = part.session->sequence;
    } else {
      part.sequence = drafter.begin_after(tokens_of(tokens, drafter.vocabulary_size), *settings);
      part.position = request.positions[index] + tokens.size();
    }
    part.accepted_at = part.next_position - part.accepted.size();
    wanted.push_back(&part);
  }
  step.distributions.push_back(std::make_unique<Distributions>(drafter.draft(wanted, *settings, max_entries)));
  for (std::size_t index : indices) {
    Step::Part& part = step.parts[index];
    if (!part.draft.proposals.empty()) part.distributions = step.distributions.back().get();
    part.generation = graph.generation;
    for (const auto& span : part.draft.proposals) max_entries -= std::min(max_entries - 1, span.size());
    step.num_empty += part.draft.size() == 0 && part.budget > 0;
    const bool could_ask = !settings->is_from_graph() && !part.sequence->graphs.first_model().empty();
    const bool asks = settings->sequence.sources[static_cast<std::size_t>(Source::kNeural)];
    step.num_without_neural += part.budget > 0 && could_ask && !asks;
    if (!part.session) continue;
    Exclusive hold(part.session->sequence->lock);
    part.session->draft_id = step.draft_id;
    part.session->is_in_prompt &= part.budget == 0;
  }
}

}  // namespace speculant
