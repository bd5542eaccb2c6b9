// The open sessions of a server: where they stand, and which must go when there are too many.
//
// Only accepted tokens are sent, so a session never rolls back: it has a position, and what comes must go on from
// there. Knows no clock: time is passed in, and never goes back.
#pragma once

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
  std::int64_t max_bytes;        // of all sessions together
  std::int64_t idle_timeout_ns;  // without a step a session is lost after it
  std::int64_t busy_ns;          // a session that had a step so recently is never dropped for another
};

/// A graph that is served: what drafts from it, and the number of its loading.
struct ServedDrafter {
  std::shared_ptr<Drafter> drafter;
  std::uint64_t generation = 0;
};

struct Session {
  std::uint64_t id;
  ServedDrafter graph;  // the one that it was opened on, and keeps
  std::string tenant;
  std::shared_ptr<Sequence> sequence;
  std::int64_t last_used_ns;
  std::int64_t num_bytes = 0;  // as they were counted last
  std::uint64_t draft_id = 0;  // of its latest draft, which feedback names
  bool is_in_prompt = true;    // no draft was asked for yet: a prompt may come in several steps
  bool is_open = true;

  std::uint64_t position() const { return static_cast<std::uint64_t>(sequence->size()); }
};

/// What is left of a session.
struct EndedSession {
  std::shared_ptr<Session> session;
  SessionEnd reason;
  std::vector<Token> learned;  // what its memory was given
};

class SessionTable {
 public:
  explicit SessionTable(SessionLimits limits) : limits_(limits) {}

  std::size_t size() const { return sessions_.size(); }
  /// Memory of all sessions.
  std::int64_t num_bytes() const { return num_bytes_; }

  /// Open a session for a new sequence; its number must not be in use. Throws LimitError if there is no capacity
  /// and no session is idle.
  std::shared_ptr<Session> open(std::uint64_t id, ServedDrafter graph, std::string tenant,
                                std::shared_ptr<LearnedMemory> memory, bool learns, std::vector<double> costs,
                                std::int64_t now_ns);
  /// An open session, which is not used by being looked at; null if there is none.
  std::shared_ptr<Session> look_at(std::uint64_t id) const;
  /// Note that a session is used; false if it was idle for too long and has ended.
  bool use(Session& session, std::int64_t now_ns);
  /// Note the memory that a session takes now, and end idle ones if all together take too much. Throws LimitError if
  /// they do and no other is idle; then this session has ended.
  void account(Session& session, std::int64_t now_ns);
  /// End a session; what it accepted is learned if it was opened so.
  void end(Session& session, SessionEnd reason);
  /// End those that are idle for too long.
  void sweep(std::int64_t now_ns);
  void end_all(SessionEnd reason);
  /// How many sessions were dropped for the memory of others.
  std::size_t num_dropped() const { return num_dropped_; }
  /// The sessions that ended since the last call.
  std::vector<EndedSession> take_ended() { return std::exchange(ended_, {}); }

 private:
  using Sessions = std::list<std::shared_ptr<Session>>;
  void drop_longest_idle(SessionEnd reason, const std::string& problem, const Session* spared, std::int64_t now_ns);

  SessionLimits limits_;
  Sessions by_use_;  // the longest unused first
  std::unordered_map<std::uint64_t, Sessions::iterator> sessions_;
  std::vector<EndedSession> ended_;
  std::int64_t num_bytes_ = 0;
  std::size_t num_dropped_ = 0;
};

}  // namespace speculant
