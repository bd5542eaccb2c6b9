#include "sessions.hpp"

#include <algorithm>
#include <cstdio>

namespace speculant {

std::shared_ptr<Session> SessionTable::open(std::uint64_t id, ServedDrafter graph, std::string tenant,
                                            std::shared_ptr<LearnedMemory> memory, bool learns, std::int64_t now_ns) {
  auto sequence = graph.drafter->open(std::move(memory), learns);
  const std::int64_t num_bytes = sequence->num_bytes();  // no lock: not shared yet
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

std::shared_ptr<Session> SessionTable::find(std::uint64_t id) const {
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
    // At least a millisecond, because 0 would mean that waiting does not help.
    const double delay_s = std::max(static_cast<double>(limits_.busy_ns - idle_ns) * 1e-9, 0.001);
    char shown[32];
    std::snprintf(shown, sizeof shown, "%.3g", delay_s);
    throw LimitError(problem + ", or try again in " + shown + " s", delay_s);
  }
  return take_out(**longest);
}

}  // namespace speculant
