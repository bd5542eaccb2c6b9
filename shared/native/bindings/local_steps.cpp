#include "local_steps.hpp"

namespace speculant {
namespace {

Step::Part& add_sequence(Step& step, std::uint64_t number, std::uint64_t position, std::size_t size,
                         std::int64_t budget) {
  wire::DraftRequest& request = step.request;
  request.session_ids.push_back(number);
  request.positions.push_back(position);
  request.context_lengths.push_back(static_cast<std::uint32_t>(size));
  request.node_budgets.push_back(static_cast<std::uint32_t>(std::clamp<std::int64_t>(budget, 0, kMaxNodes)));
  return step.parts.emplace_back();
}

}  // namespace

void LocalSteps::open(std::uint64_t id, std::shared_ptr<LearnedMemory> memory, bool learns) {
  const std::uint64_t number = ++last_number_;
  auto session = without_gil([&] { return table_->open(number, {drafter_, 1}, "", std::move(memory), learns, 0); });
  const auto [place, is_new] = known_.try_emplace(id, Known{.session = session});
  if (is_new) return;
  end(*session);
  throw RequestError("session " + std::to_string(id) + " is open already; close it or choose another number");
}

std::vector<Token> LocalSteps::end(std::uint64_t id) {
  const auto found = known_.find(id);
  if (found == known_.end()) return {};
  const std::shared_ptr<Session> session = std::move(found->second.session);
  known_.erase(found);
  return end(*session);
}

std::vector<Token> LocalSteps::end(Session& session) {
  std::vector<EndedSession> ended;
  without_gil([&] {
    drafter_->learn_rest();  // from the session's last tokens, before its memory knows them
    std::lock_guard guard(ending_);
    table_->end(session, SessionEnd::kClosed);
    ended = table_->take_ended();
  });
  return ended.empty() ? std::vector<Token>() : std::move(ended.front().learned);
}

const LocalSteps::Known& LocalSteps::known(std::uint64_t id) const {
  const auto found = known_.find(id);
  if (found == known_.end()) throw RequestError("session " + std::to_string(id) + " is not open; open it first");
  return found->second;
}

void LocalSteps::accept(std::uint64_t id, std::span<const std::int64_t> ids, bool is_prompt) {
  Known& taken = known(id);
  taken.take(ids);
  const auto session = taken.session;
  without_gil([&] { drafter_->accept(*session->sequence, tokens_of(ids, drafter_->vocabulary_size), is_prompt); });
}

void LocalSteps::add_top_k(std::uint64_t id, std::span<const std::int64_t> nodes,
                           const Table<const std::int64_t>& rows) {
  if (rows.shape(0) != nodes.size()) throw RequestError("give one row per node");
  const auto session = known(id).session;
  without_gil([&] {
    const std::vector<Token> tokens = tokens_of(as_span(rows), drafter_->vocabulary_size);
    Exclusive hold(session->sequence->lock);
    session->sequence->add_top_k(nodes, tokens, rows.shape(1));
  });
}

std::int64_t LocalSteps::num_bytes(std::uint64_t id) {
  const auto session = known(id).session;
  return without_gil([&] { return Exclusive(session->sequence->lock), session->sequence->num_bytes(); });
}

std::vector<std::uint64_t> LocalSteps::changed(const std::vector<std::uint64_t>& ids, const nb::list& texts) const {
  std::vector<std::uint64_t> changed;
  for (std::size_t index = 0; index < ids.size(); ++index) {
    const Known taken = known(ids[index]);  // a copy, because converting a text's numbers may run Python code
    const Text text(texts[index]);
    bool is_same = text.size() >= taken.size;
    for (std::size_t back = 1; is_same && back <= std::min(taken.size, kTail); ++back) {
      is_same = id_of(text[taken.size - back]) == taken.tail[(taken.size - back) % kTail];
    }
    if (!is_same) changed.push_back(ids[index]);
  }
  return changed;
}

SequenceDraft& LocalSteps::add(Step& step, std::uint64_t id, const Text& text, std::int64_t budget) {
  std::vector<std::uint32_t>& tokens = step.request.context_tokens;
  const std::size_t size = text.size(), first = std::min(known(id).size, size), before = tokens.size();
  for (std::size_t each = first; each < size; ++each) tokens.push_back(id_of(text[each]));
  Known& taken = known(id);  // looked up again: converting a text's numbers may run Python code
  Step::Part& part = add_sequence(step, taken.session->id, first, size - first, budget);
  if (size == 0) {
    part.session = taken.session;
  } else {
    taken.size = first;
    taken.take(std::span(tokens).subspan(before));
  }
  return part;
}

SequenceDraft& LocalSteps::add_stateless(Step& step, const Text& text, std::int64_t budget, std::uint64_t position) {
  const std::size_t size = text.size();
  for (std::size_t each = 0; each < size; ++each) step.request.context_tokens.push_back(id_of(text[each]));
  return add_sequence(step, 0, position - size, size, budget);
}

void LocalSteps::add_feedback(Step& step, std::vector<std::optional<LocalFeedback>> feedback,
                              const std::vector<std::uint64_t>& ids) const {
  wire::DraftRequest& request = step.request;
  for (std::size_t index = 0; index < feedback.size(); ++index) {
    const std::size_t most = known(ids[index]).num_nodes;
    auto& each = feedback[index];
    if (each && std::any_of(each->nodes.begin(), each->nodes.end(), [=](auto node) { return node > most; }))
      each.reset();
  }
  std::size_t width = 0;
  for (const auto& each : feedback) width = std::max(width, each ? each->rows.shape(1) : 0);
  request.feedback_width = static_cast<std::uint32_t>(width);
  for (const auto& each : feedback) {
    request.feedback_draft_ids.push_back(each ? each->draft_id : 0);
    request.feedback_row_counts.push_back(each ? static_cast<std::uint32_t>(each->nodes.size()) : 0);
    if (!each) continue;
    if (each->rows.shape(0) != each->nodes.size()) throw RequestError("give one row per node");
    request.feedback_nodes.insert(request.feedback_nodes.end(), each->nodes.begin(), each->nodes.end());
    for (std::size_t row = 0; row < each->nodes.size(); ++row) {
      for (std::size_t column = 0; column < width; ++column) {
        request.feedback_tokens.push_back(column < each->rows.shape(1) ? id_of(each->rows(row, column)) : kNoId);
      }
    }
  }
}

void LocalSteps::run(Step& step, const std::vector<std::uint64_t>& ids) {
  without_gil([&] { steps_.run(step, std::nullopt, host_, std::numeric_limits<std::int64_t>::max()); });
  for (std::size_t index = 0; index < ids.size(); ++index) {
    const auto found = known_.find(ids[index]);
    if (found != known_.end()) found->second.num_nodes = step.parts[index].draft.size();
  }
}

}  // namespace speculant
