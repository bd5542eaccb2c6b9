#include "session_table.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace speculant {

std::shared_ptr<Session> SessionTable::open(std::uint64_t id, ServedDrafter graph, std::string tenant,
                                            std::shared_ptr<LearnedMemory> memory, bool learns,
                                            std::vector<double> costs, std::int64_t now_ns) {
  if (sessions_.contains(id)) throw RequestError("this session id is in use; choose another, at random for instance");
  if (sessions_.size() >= limits_.max_sessions) {
    const std::string problem = std::to_string(limits_.max_sessions) + " sessions are open; close some";
    drop_longest_idle(SessionEnd::kLimit, problem, nullptr, now_ns);
  }
  auto sequence = graph.drafter->open(std::move(memory), learns, std::move(costs));
  auto session = std::make_shared<Session>(Session{
      .id = id,
      .graph = std::move(graph),
      .tenant = std::move(tenant),
      .sequence = std::move(sequence),
      .last_used_ns = now_ns,
  });
  sessions_[id] = by_use_.insert(by_use_.end(), session);
  account(*session, now_ns);
  return session;
}

std::shared_ptr<Session> SessionTable::look_at(std::uint64_t id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : *found->second;
}

bool SessionTable::use(Session& session, std::int64_t now_ns) {
  if (now_ns - session.last_used_ns > limits_.idle_timeout_ns) {
    end(session, SessionEnd::kIdle);
    return false;
  }
  session.last_used_ns = now_ns;
  by_use_.splice(by_use_.end(), by_use_, sessions_.at(session.id));
  return true;
}

void SessionTable::account(Session& session, std::int64_t now_ns) {
  const std::int64_t num_bytes = session.sequence->num_bytes();
  num_bytes_ += num_bytes - std::exchange(session.num_bytes, num_bytes);
  while (num_bytes_ > limits_.max_bytes) {
    try {
      drop_longest_idle(SessionEnd::kMemory, "the memory for sessions is full; send shorter sequences", &session,
                        now_ns);
    } catch (const LimitError&) {
      end(session, SessionEnd::kMemory);
      throw;
    }
  }
}

void SessionTable::end(Session& session, SessionEnd reason) {
  if (!std::exchange(session.is_open, false)) return;
  num_dropped_ += reason == SessionEnd::kMemory;
  num_bytes_ -= session.num_bytes;
  const auto found = sessions_.find(session.id);
  ended_.push_back({*found->second, reason, session.sequence->finish()});
  by_use_.erase(found->second);
  sessions_.erase(found);
}

void SessionTable::sweep(std::int64_t now_ns) {
  for (const auto& session : std::vector(by_use_.begin(), by_use_.end())) {
    if (now_ns - session->last_used_ns > limits_.idle_timeout_ns) end(*session, SessionEnd::kIdle);
  }
}

void SessionTable::end_all(SessionEnd reason) {
  while (!by_use_.empty()) end(*by_use_.front(), reason);
}

void SessionTable::drop_longest_idle(SessionEnd reason, const std::string& problem, const Session* spared,
                                     std::int64_t now_ns) {
  auto longest = by_use_.begin();
  if (longest != by_use_.end() && longest->get() == spared) ++longest;
  const bool has_one = longest != by_use_.end();
  const std::int64_t idle_ns = has_one ? now_ns - (*longest)->last_used_ns : 0;
  if (!has_one || idle_ns < limits_.busy_ns) {
    const double delay_s = std::max(static_cast<double>(limits_.busy_ns - idle_ns) * 1e-9, 0.001);
    char shown[32];
    std::snprintf(shown, sizeof shown, "%.3g", delay_s);
    throw LimitError(problem + ", or try again in " + shown + " s", delay_s);
  }
  end(**longest, reason);
}

}  // namespace speculant
