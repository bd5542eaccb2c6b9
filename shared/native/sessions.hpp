// The open sessions of a server: their positions, and eviction when there are too many.
//
// Clients send only accepted tokens, so a session never rolls back: new tokens must continue from its position. The
// table has no clock: callers pass in the time, which never decreases.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drafter.hpp"

namespace speculant {

/// Why a session ended.
enum class SessionEnd : std::uint8_t { kClosed, kIdle, kLimit, kMemory, kDiverged };

struct SessionLimits {
  std::size_t max_sessions;
  std::int64_t max_bytes;        // for all sessions together
  std::int64_t idle_timeout_ns;  // a session without a step for this long ends
  std::int64_t busy_ns;          // a session with a step in this time is never evicted
};

/// The drafter of a served graph, and the graph's generation.
struct ServedDrafter {
  std::shared_ptr<Drafter> drafter;
  std::uint64_t generation = 0;
};

struct Session {
  const std::uint64_t id;
  const ServedDrafter graph;  // the generation on which the session was opened
  const std::string tenant;
  const std::shared_ptr<Sequence> sequence;
  // Used by the table, under its lock:
  std::int64_t last_used_ns;
  std::int64_t num_bytes = 0;  // at the last count
  std::atomic<bool> is_open = true;
  // Used by steps, under the sequence's lock:
  std::uint64_t draft_id = 0;  // the latest draft, to which feedback refers
  bool is_in_prompt = true;    // until the first draft request: a prompt may come in several steps
};

/// A session that has ended.
struct EndedSession {
  std::shared_ptr<Session> session;
  SessionEnd reason;
  std::vector<Token> learned;  // the text that was added to its memory
};

/// Safe to use from several threads.
class SessionTable {
 public:
  explicit SessionTable(SessionLimits limits) : limits_(limits) {}

  std::size_t size() const { return Exclusive(lock_), sessions_.size(); }
  /// Memory of all sessions.
  std::int64_t num_bytes() const { return Exclusive(lock_), num_bytes_; }

  /// Open a session for a new sequence; its id must not be in use. Throws LimitError if there is no capacity and no
  /// session is idle.
  std::shared_ptr<Session> open(std::uint64_t id, ServedDrafter graph, std::string tenant,
                                std::shared_ptr<LearnedMemory> memory, bool learns, std::int64_t now_ns);
  /// Return an open session without marking it as used; null if there is none.
  std::shared_ptr<Session> find(std::uint64_t id) const;
  /// Mark a session as used; false if it was idle for too long and has ended.
  bool use(Session& session, std::int64_t now_ns);
  /// Update the memory count of a session, and end idle sessions if the total exceeds the limit. Throws LimitError if
  /// no other session is idle; this session has ended then.
  void account(Session& session, std::int64_t num_bytes, std::int64_t now_ns);
  /// End a session; its accepted text is learned if the session was opened with `learns`.
  void end(Session& session, SessionEnd reason);
  /// End sessions that have been idle for too long.
  void sweep(std::int64_t now_ns);
  void end_all(SessionEnd reason);
  /// The sessions that ended since the last call.
  std::vector<EndedSession> take_ended() { return Exclusive(lock_), std::exchange(ended_, {}); }

 private:
  using Sessions = std::list<std::shared_ptr<Session>>;
  // These two need the lock. The first removes a session; null if it has ended. The second removes the least recently
  // used session other than `spared`.
  std::shared_ptr<Session> take_out(Session& session);
  std::shared_ptr<Session> take_out_longest_idle(const std::string& problem, const Session* spared,
                                                 std::int64_t now_ns);
  /// End a removed session; call this without the lock.
  void finish(std::shared_ptr<Session> session, SessionEnd reason);

  mutable FairLock lock_{LockKind::kTable};
  const SessionLimits limits_;
  Sessions by_use_;  // least recently used first
  std::unordered_map<std::uint64_t, Sessions::iterator> sessions_;
  std::vector<EndedSession> ended_;
  std::int64_t num_bytes_ = 0;
};

}  // namespace speculant
