#include "step.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace speculant {
namespace {

// Options that are known to be served. Clients may ask for anything, so nothing is kept for ever; as kMaxSettings.
constexpr std::size_t kMaxOptions = 256;
// Most bytes of an answer: of any, for each sequence, node and entry of a distribution, and of an envelope. The numbers
// of drafter.proto are of fixed width, so they follow from it; tests/support/step_reference.py has the same.
constexpr std::size_t kFixedBytes = 128, kSequenceBytes = 28, kNodeBytes = 16, kEntryBytes = 8, kEnvelopeBytes = 32;
constexpr const char* kNotParsed = "the message can't be parsed; send one of this service's protocol";

std::int64_t clock_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Fill an array that stands for zeros.
template <class Number>
void per_sequence(const char* name, std::vector<Number>& values, std::size_t count) {
  if (values.empty()) values.resize(count);
  wire::expect(name, values, count, "the number of sequences");
}

template <class To, class From>
void append(std::vector<To>& values, const From& more) {
  values.insert(values.end(), more.begin(), more.end());
}

/// What a step takes at most, about: a token of a prompt half a microsecond, a node 4, a sequence 20. (Measured: a node
/// takes 2, and twice as long with cold caches.) A few tokens that are learned from take more, and no prompt is so
/// short.
std::int64_t expected_ns(const wire::DraftRequest& request) {
  return static_cast<std::int64_t>(20'000 * request.context_lengths.size() + 500 * request.context_tokens.size() +
                                   4'000 * wire::sum(request.node_budgets));
}

// Accepted tokens that are taken where the draft is made, at most: as many as one hold of the locks takes.
constexpr std::size_t kMostLater = 32;

std::int64_t num_bytes_of(Sequence& sequence) { return Exclusive(sequence.lock), sequence.num_bytes(); }

}  // namespace

std::shared_ptr<Session> SessionTable::open(std::uint64_t id, ServedDrafter graph, std::string tenant,
                                            std::shared_ptr<LearnedMemory> memory, bool learns, std::int64_t now_ns) {
  auto sequence = graph.drafter->open(std::move(memory), learns);
  const std::int64_t num_bytes = sequence->num_bytes();  // nobody else has it yet
  std::shared_ptr<Session> dropped, session;
  {
    Exclusive hold(lock_);
    if (sessions_.contains(id)) {
      throw RequestError("this session id is in use; choose another, at random for instance");
    }
    if (sessions_.size() >= limits_.max_sessions) {
      const std::string problem = std::to_string(limits_.max_sessions) + " sessions are open; close some";
      dropped = take_out_longest_idle(problem, nullptr, now_ns);
    }
    session.reset(new Session{
        .id = id,
        .graph = std::move(graph),
        .tenant = std::move(tenant),
        .sequence = std::move(sequence),
        .last_used_ns = now_ns,
    });
    sessions_[id] = by_use_.insert(by_use_.end(), session);
  }
  if (dropped) finish(std::move(dropped), SessionEnd::kLimit);
  account(*session, num_bytes, now_ns);
  return session;
}

std::shared_ptr<Session> SessionTable::look_at(std::uint64_t id) const {
  Exclusive hold(lock_);
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : *found->second;
}

bool SessionTable::use(Session& session, std::int64_t now_ns) {
  std::shared_ptr<Session> idle;
  {
    Exclusive hold(lock_);
    if (!session.is_open) return false;
    if (now_ns - session.last_used_ns <= limits_.idle_timeout_ns) {
      session.last_used_ns = now_ns;
      by_use_.splice(by_use_.end(), by_use_, sessions_.at(session.id));
      return true;
    }
    idle = take_out(session);
  }
  finish(std::move(idle), SessionEnd::kIdle);
  return false;
}

void SessionTable::account(Session& session, std::int64_t num_bytes, std::int64_t now_ns) {
  for (;;) {
    std::shared_ptr<Session> dropped;
    try {
      Exclusive hold(lock_);
      if (!session.is_open) return;
      num_bytes_ += num_bytes - std::exchange(session.num_bytes, num_bytes);
      if (num_bytes_ <= limits_.max_bytes) return;
      dropped = take_out_longest_idle("the memory for sessions is full; send shorter sequences", &session, now_ns);
    } catch (const LimitError&) {
      end(session, SessionEnd::kMemory);
      throw;
    }
    finish(std::move(dropped), SessionEnd::kMemory);
  }
}

void SessionTable::end(Session& session, SessionEnd reason) {
  std::shared_ptr<Session> ended;
  {
    Exclusive hold(lock_);
    ended = take_out(session);
  }
  if (ended) finish(std::move(ended), reason);
}

void SessionTable::sweep(std::int64_t now_ns) {
  for (;;) {
    std::shared_ptr<Session> idle;
    {
      Exclusive hold(lock_);
      if (by_use_.empty() || now_ns - by_use_.front()->last_used_ns <= limits_.idle_timeout_ns) return;
      idle = take_out(*by_use_.front());
    }
    finish(std::move(idle), SessionEnd::kIdle);
  }
}

void SessionTable::end_all(SessionEnd reason) {
  for (;;) {
    std::shared_ptr<Session> next;
    {
      Exclusive hold(lock_);
      if (by_use_.empty()) return;
      next = take_out(*by_use_.front());
    }
    finish(std::move(next), reason);
  }
}

std::shared_ptr<Session> SessionTable::take_out(Session& session) {
  if (!session.is_open.exchange(false)) return nullptr;
  num_bytes_ -= session.num_bytes;
  const auto found = sessions_.find(session.id);
  std::shared_ptr<Session> taken = std::move(*found->second);
  by_use_.erase(found->second);
  sessions_.erase(found);
  return taken;
}

void SessionTable::finish(std::shared_ptr<Session> session, SessionEnd reason) {
  std::vector<Token> learned = session->sequence->finish();
  Exclusive hold(lock_);
  ended_.push_back({std::move(session), reason, std::move(learned)});
}

std::shared_ptr<Session> SessionTable::take_out_longest_idle(const std::string& problem, const Session* spared,
                                                             std::int64_t now_ns) {
  auto longest = by_use_.begin();
  if (longest != by_use_.end() && longest->get() == spared) ++longest;
  const bool has_one = longest != by_use_.end();
  const std::int64_t idle_ns = has_one ? now_ns - (*longest)->last_used_ns : 0;
  if (!has_one || idle_ns < limits_.busy_ns) {
    // A millisecond at least, as 0 would mean that waiting does not help.
    const double delay_s = std::max(static_cast<double>(limits_.busy_ns - idle_ns) * 1e-9, 0.001);
    char shown[32];
    std::snprintf(shown, sizeof shown, "%.3g", delay_s);
    throw LimitError(problem + ", or try again in " + shown + " s", delay_s);
  }
  return take_out(**longest);
}

bool StepAnswerer::run(Step& step, const Tenants& tenants, StepHost& host, std::int64_t most_ns) {
  check(step, host);
  if (expected_ns(step.request) > most_ns) return false;
  std::vector<std::shared_ptr<Drafter>> learning;
  {
    std::lock_guard guard(mutex_);
    learning.swap(learning_);
  }
  // Usually all has been learned by now. So drafts do not depend on how long that takes.
  for (const auto& drafter : learning) drafter->learn_rest();
  for (std::size_t index = 0; index < step.size(); ++index) take(step, index, tenants);
  for (Step::Part& part : step.parts) {  // sessions that were dropped, for others of the same step for instance
    if (part.session && !part.session->is_open) part = {.status = SequenceStatus::kSessionLost};
  }
  draft_all(step, host);
  learn_soon(step);
  return true;
}

/// Count the memory of sequences that took tokens with their drafts, and have them learned from.
void StepAnswerer::learn_soon(const Step& step) {
  std::vector<std::pair<std::shared_ptr<Drafter>, std::vector<std::shared_ptr<Sequence>>>> by_drafter;
  for (const Step::Part& part : step.parts) {
    if (part.accepted.empty() || !part.session) continue;
    try {
      sessions_->account(*part.session, num_bytes_of(*part.session->sequence), step.now_ns);
    } catch (const LimitError&) {  // it has ended, as the next step will tell
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

std::optional<wire::Written> StepAnswerer::answer(std::string_view payload, bool is_enveloped, const Tenants& tenants,
                                                  std::uint64_t draft_id, std::int64_t now_ns, StepHost& host,
                                                  StepCounts& counts, std::int64_t most_ns) {
  const std::int64_t started_ns = clock_ns();
  wire::StreamDraftRequest enveloped;
  Step step{.request = {}, .draft_id = draft_id, .now_ns = now_ns};
  try {
    if (is_enveloped) enveloped = wire::read_stream_request(payload);
    step.request = wire::read_request(is_enveloped ? std::string_view(enveloped.draft.bytes) : payload);
  } catch (const wire::ParseError&) {
    throw RequestError(kNotParsed);
  }
  if (!run(step, tenants, host, most_ns)) return std::nullopt;

  wire::DraftResponse response;
  response.draft_id = draft_id;
  bool is_of_one = true;
  for (const Step::Part& part : step.parts) {
    response.sequence_statuses.push_back(static_cast<std::uint32_t>(part.status));
    response.next_positions.push_back(part.next_position);
    response.sequence_generations.push_back(part.generation);
    response.ended_early.push_back(part.draft.ended_early);
    part.draft.append_to(response.draft_lengths, response.draft_tokens, response.draft_parents,
                         response.draft_path_probabilities);
    for (const auto& [first, last] : part.draft.proposals) {
      response.candidate_counts.push_back(static_cast<std::uint32_t>(last - first));
      append(response.candidate_tokens, std::span(part.distributions->tokens).subspan(first, last - first));
      append(response.candidate_probabilities,
             std::span(part.distributions->probabilities).subspan(first, last - first));
    }
    if (part.generation == 0) continue;
    is_of_one &= response.graph_generation == 0 || response.graph_generation == part.generation;
    response.graph_generation = part.generation;
  }
  if (!is_of_one) response.graph_generation = 0;
  if (is_of_one && response.graph_generation == 0) response.graph_generation = host.default_generation();
  if (response.graph_generation != 0) response.sequence_generations.clear();
  counts = {step.size(), response.draft_tokens.size(), step.num_empty, clock_ns() - started_ns};
  response.server_time = wire::Duration::of(counts.elapsed_ns);
  wire::Written written = wire::write(response);
  if (written.view().size() + kEnvelopeBytes > limits_.max_message_bytes) {
    throw LimitError("the answer is larger than " + std::to_string(limits_.max_message_bytes) +
                     " bytes; ask for fewer nodes, or send fewer sequences at a time");
  }
  if (is_enveloped) wire::envelope(written, enveloped.step_id);
  return written;
}

/// Check a request, and fill what it leaves to the server.
void StepAnswerer::check(Step& step, StepHost& host) {
  wire::DraftRequest& request = step.request;
  const std::size_t count = step.size();
  const auto limit = [](std::uint64_t number, std::uint64_t most, const char* what, const char* advice,
                        const char* end = "") {
    if (number <= most) return;
    throw LimitError(std::to_string(number) + what + advice + std::to_string(most) + end);
  };
  limit(count, limits_.max_sequences, " sequences in one message", "; send at most ");
  limit(request.context_tokens.size(), limits_.max_tokens, " context tokens in one message", "; send at most ",
        ", in parts");
  auto& budgets = request.node_budgets;
  if (!budgets.empty()) {
    limit(*std::max_element(budgets.begin(), budgets.end()), limits_.max_nodes, " nodes asked for",
          "; ask for at most ");
  }
  const std::string& options = request.options.bytes;
  const auto is_known = [&] { return std::lock_guard(mutex_), known_options_.contains(options); };
  if (!step.settings && !is_known()) {
    host.check_options(options);
    std::lock_guard guard(mutex_);
    if (known_options_.size() >= kMaxOptions) known_options_.clear();
    known_options_.insert(options);
  }
  per_sequence("session_ids", request.session_ids, count);
  per_sequence("positions", request.positions, count);
  wire::expect("context_tokens", request.context_tokens, wire::sum(request.context_lengths), "the sum of its lengths");
  if (budgets.empty()) budgets.assign(count, limits_.budget);
  per_sequence("node_budgets", budgets, count);
  per_sequence("seeds", request.seeds, count);
  per_sequence("least_path_probabilities", request.least_path_probabilities, count);
  for (float each : request.least_path_probabilities) {
    if (!(0.0f <= each && each <= 1.0f)) {
      throw RequestError("a least path probability is " + std::to_string(each) + "; send one from 0 to 1");
    }
  }
  per_sequence("feedback_draft_ids", request.feedback_draft_ids, count);
  per_sequence("feedback_row_counts", request.feedback_row_counts, count);
  wire::expect("feedback_nodes", request.feedback_nodes, wire::sum(request.feedback_row_counts),
               "the sum of its lengths");
  wire::expect("feedback_tokens", request.feedback_tokens, request.feedback_nodes.size() * request.feedback_width,
               "feedback_width times the number of rows");
  limit(wire::sum(budgets), limits_.max_step_nodes, " nodes asked for in one step", "; ask for at most ", " a step");
  std::unordered_set<std::uint64_t> seen;
  for (std::uint64_t id : request.session_ids) {
    if (id != 0 && !seen.insert(id).second) {
      throw RequestError("a session is twice in one step; send one sequence for each");
    }
  }
  step.parts.resize(count);
  std::size_t token = 0, row = 0;
  for (std::size_t index = 0; index < count; ++index) {
    step.parts[index].first_token = token, step.parts[index].first_row = row;
    token += request.context_lengths[index];
    row += request.feedback_row_counts[index];
  }
}

/// Take the tokens of one sequence that are new to its session, part by part: other threads may use or end the session
/// between two of them.
void StepAnswerer::take(Step& step, std::size_t index, const Tenants& tenants) {
  const wire::DraftRequest& request = step.request;
  Step::Part& part = step.parts[index];
  if (request.session_ids[index] == 0) return;
  part.status = SequenceStatus::kSessionLost;
  const std::shared_ptr<Session> session = sessions_->look_at(request.session_ids[index]);
  if (!session) return;
  // Looked at first: a stranger's step must not keep a session from being idle.
  if (tenants && std::find(tenants->begin(), tenants->end(), session->tenant) == tenants->end()) return;
  if (!sessions_->use(*session, step.now_ns)) return;

  Drafter& drafter = *session->graph.drafter;
  Sequence& sequence = *session->sequence;
  const std::vector<Token> tokens = tokens_of(step.context(index), drafter.vocabulary_size);
  std::uint64_t position = request.positions[index];
  Addition addition{tokens, false};
  const auto take_part = [&] {  // false: the session holds another text
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
      addition.is_prompt = session->is_in_prompt;
      // Drafts are made from rows, which are taken after learning.
      if (step.learns_later && !addition.is_prompt && addition.tokens.size() <= kMostLater &&
          request.feedback_row_counts[index] == 0) {
        part.accepted.assign(addition.tokens.begin(), addition.tokens.end());
        part.next_position = known + part.accepted.size();
        addition.tokens = {};
        return true;
      }
      if (position == known) add_rows(step, index, *session);
    }
    drafter.accept_part(sequence, addition);
    part.next_position = position = static_cast<std::uint64_t>(sequence.size());
    return true;
  };
  do {
    if (!take_part()) {
      part = {.first_token = part.first_token, .first_row = part.first_row, .status = SequenceStatus::kSessionLost};
      return sessions_->end(*session, SessionEnd::kDiverged);
    }
    if (addition.has_begun) sessions_->account(*session, num_bytes_of(sequence), step.now_ns);
  } while (!addition.tokens.empty() && session->is_open);
}

/// Take the target's rows that came with a sequence. Those of a draft that is not the latest can't be assigned, and
/// those of a step sent again were taken. Without a token none was verified; such rows would only pile up.
void StepAnswerer::add_rows(const Step& step, std::size_t index, Session& session) {
  const wire::DraftRequest& request = step.request;
  const std::size_t num_rows = request.feedback_row_counts[index], width = request.feedback_width;
  if (num_rows * width == 0 || request.feedback_draft_ids[index] != session.draft_id) return;
  const Step::Part& part = step.parts[index];
  std::vector<std::int64_t> nodes;
  append(nodes, std::span(request.feedback_nodes).subspan(part.first_row, num_rows));
  const auto ids = std::span(request.feedback_tokens).subspan(part.first_row * width, num_rows * width);
  session.sequence->add_rows(nodes, tokens_of(ids, session.graph.drafter->vocabulary_size), width);
}

/// Draft for all sequences that were taken, and for those without a session.
void StepAnswerer::draft_all(Step& step, StepHost& host) {
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
  // Drafts are cut before an answer is too large: one that is refused, or not, by the tokens that were drawn would
  // leave the verifier with tokens that are no draws from q.
  const std::size_t fixed_bytes = kEnvelopeBytes + kFixedBytes + kSequenceBytes * step.size() +
                                  kNodeBytes * static_cast<std::size_t>(wire::sum(step.request.node_budgets));
  std::size_t max_entries = 1;
  if (limits_.max_message_bytes > fixed_bytes) {
    max_entries = std::max<std::size_t>((limits_.max_message_bytes - fixed_bytes) / kEntryBytes, 1);
  }
  for (const Group& group : groups) draft_from(step, group.indices, group.graph, max_entries);
  if (!stateless.empty()) draft_from(step, stateless, host.graph_of(step.request.graph), max_entries);
}

/// Draft for the sequences of one graph, all of which have sessions, or none.
void StepAnswerer::draft_from(Step& step, const std::vector<std::size_t>& indices, const ServedDrafter& graph,
                              std::size_t& max_entries) {
  const wire::DraftRequest& request = step.request;
  Drafter& drafter = *graph.drafter;
  const auto settings = step.settings ? step.settings : drafter.settings_of(request.options.bytes);
  std::vector<std::shared_ptr<Sequence>> sequences;
  std::vector<DraftRequest> wanted;
  for (std::size_t index : indices) {
    const auto& session = step.parts[index].session;
    const auto tokens = step.context(index);
    sequences.push_back(session ? session->sequence
                                : drafter.begin_after(tokens_of(tokens, drafter.vocabulary_size), *settings));
    const int budget = static_cast<int>(std::min<std::uint32_t>(request.node_budgets[index], kMaxNodes));
    wanted.push_back({sequences.back().get(), budget, request.seeds[index]});
    wanted.back().least_probability = request.least_path_probabilities[index];
    const auto& accepted = step.parts[index].accepted;
    wanted.back().accepted = accepted;
    wanted.back().accepted_at = step.parts[index].next_position - accepted.size();
    if (!session) wanted.back().position = request.positions[index] + tokens.size();
  }
  step.batches.push_back(std::make_unique<DraftBatch>(drafter.draft(wanted, *settings, max_entries)));
  DraftBatch& batch = *step.batches.back();
  for (std::size_t rank = 0; rank < indices.size(); ++rank) {
    Step::Part& part = step.parts[indices[rank]];
    part.draft = std::move(batch.drafts[rank]);
    if (!part.draft.proposals.empty()) part.distributions = &batch.distributions;
    part.generation = graph.generation;
    for (const auto& span : part.draft.proposals) max_entries -= std::min(max_entries - 1, span.size());
    step.num_empty += part.draft.size() == 0 && request.node_budgets[indices[rank]] > 0;
    if (!part.session) continue;
    Exclusive hold(part.session->sequence->lock);
    part.session->draft_id = step.draft_id;
    part.session->is_in_prompt &= request.node_budgets[indices[rank]] == 0;
  }
}

}  // namespace speculant
