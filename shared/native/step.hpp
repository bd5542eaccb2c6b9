// One step of a batch, from the bytes of a request to the bytes of an answer, for every strategy; and the open sessions
// that steps are for: where they stand, and which must go when there are too many.
//
// Only accepted tokens are sent, so a session never rolls back: it has a position, and what comes must go on from
// there. Knows no clock: time is passed in, and never goes back.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "drafter.hpp"
#include "wire.hpp"

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
  const std::uint64_t id;
  const ServedDrafter graph;  // the one that it was opened on, and keeps
  const std::string tenant;
  const std::shared_ptr<Sequence> sequence;
  // For the table, under its lock:
  std::int64_t last_used_ns;
  std::int64_t num_bytes = 0;  // as they were counted last
  std::atomic<bool> is_open = true;
  // For steps, under the sequence's lock:
  std::uint64_t draft_id = 0;  // of its latest draft, which feedback names
  bool is_in_prompt = true;    // no draft was asked for yet: a prompt may come in several steps
};

/// What is left of a session.
struct EndedSession {
  std::shared_ptr<Session> session;
  SessionEnd reason;
  std::vector<Token> learned;  // what its memory was given
};

/// Safe to use from several threads.
class SessionTable {
 public:
  explicit SessionTable(SessionLimits limits) : limits_(limits) {}

  std::size_t size() const { return Exclusive(lock_), sessions_.size(); }
  /// Memory of all sessions.
  std::int64_t num_bytes() const { return Exclusive(lock_), num_bytes_; }

  /// Open a session for a new sequence; its number must not be in use. Throws LimitError if there is no capacity
  /// and no session is idle.
  std::shared_ptr<Session> open(std::uint64_t id, ServedDrafter graph, std::string tenant,
                                std::shared_ptr<LearnedMemory> memory, bool learns, std::int64_t now_ns);
  /// An open session, which is not used by being looked at; null if there is none.
  std::shared_ptr<Session> look_at(std::uint64_t id) const;
  /// Note that a session is used; false if it was idle for too long and has ended.
  bool use(Session& session, std::int64_t now_ns);
  /// Note the memory that a session takes now, and end idle ones if all together take too much. Throws LimitError if
  /// they do and no other is idle; then this session has ended.
  void account(Session& session, std::int64_t num_bytes, std::int64_t now_ns);
  /// End a session; what it accepted is learned if it was opened so.
  void end(Session& session, SessionEnd reason);
  /// End those that are idle for too long.
  void sweep(std::int64_t now_ns);
  void end_all(SessionEnd reason);
  /// The sessions that ended since the last call.
  std::vector<EndedSession> take_ended() { return Exclusive(lock_), std::exchange(ended_, {}); }

 private:
  using Sessions = std::list<std::shared_ptr<Session>>;
  // With the lock held: take a session out, null if it has ended; the one that was not used for longest, but for one.
  std::shared_ptr<Session> take_out(Session& session);
  std::shared_ptr<Session> take_out_longest_idle(const std::string& problem, const Session* spared,
                                                 std::int64_t now_ns);
  /// End a session that was taken out, without the lock.
  void finish(std::shared_ptr<Session> session, SessionEnd reason);

  mutable FairLock lock_{LockKind::kTable};
  const SessionLimits limits_;
  Sessions by_use_;  // the longest unused first
  std::unordered_map<std::uint64_t, Sessions::iterator> sessions_;
  std::vector<EndedSession> ended_;
  std::int64_t num_bytes_ = 0;
};

/// What became of a sequence; numbers of the wire.
enum class SequenceStatus : std::uint32_t { kOk = 1, kSessionLost, kOutOfSync };

struct StepLimits {
  std::size_t max_sequences, max_tokens;  // of one message
  std::uint32_t max_nodes;                // of one sequence
  std::uint64_t max_step_nodes;           // of all sequences of a step
  std::size_t max_message_bytes;          // of an answer
  std::uint32_t budget;                   // where a request leaves it to the server
};

/// The tenants whose sessions the caller may use, all if there is no list.
using Tenants = std::optional<std::vector<std::string>>;

/// What a step needs of Python.
struct StepHost {
  /// Throw if a StrategyOptions asks for what is not served.
  std::function<void(const std::string& options)> check_options;
  /// The graph of this name, if the client may use it.
  std::function<ServedDrafter(const std::string& name)> graph_of;
  /// The default graph's generation, for an answer that no graph gave.
  std::function<std::uint64_t()> default_generation;
};

/// Counts of a step.
struct StepCounts {
  std::size_t num_sequences = 0, num_nodes = 0, num_empty = 0;
  std::int64_t elapsed_ns = 0;
};

/// A step, and what becomes of it.
struct Step {
  struct Part {  // of one sequence
    std::size_t first_token = 0, first_row = 0;
    SequenceStatus status = SequenceStatus::kOk;
    std::uint64_t next_position = 0, generation = 0;
    std::shared_ptr<Session> session = {};  // null if it is lost, or stateless
    std::vector<Token> accepted = {};       // to be taken when its draft is made
    Draft draft = {};
    const Distributions* distributions = nullptr;  // that its proposals are in; null if it has none
  };
  wire::DraftRequest request;
  std::uint64_t draft_id;
  std::int64_t now_ns;
  std::shared_ptr<const DraftSettings> settings = {};  // instead of the request's options
  bool learns_later = false;                           // from what it brings, when its drafts are on their way
  std::vector<Part> parts = {};
  std::vector<std::unique_ptr<DraftBatch>> batches = {};  // one per graph
  std::size_t num_empty = 0;

  std::size_t size() const { return request.context_lengths.size(); }
  std::span<const std::uint32_t> context(std::size_t index) const {
    return std::span(request.context_tokens).subspan(parts[index].first_token, request.context_lengths[index]);
  }
};

/// Answers steps from sessions and graphs. Safe to use from several threads.
class StepAnswerer {
 public:
  StepAnswerer(StepLimits limits, std::shared_ptr<SessionTable> sessions)
      : limits_(limits), sessions_(std::move(sessions)) {}

  /// Take what is new of all sequences, and draft for them. Throws if the step is refused: tokens of sequences
  /// before the one that is to blame were taken, which does no harm, as they are recognised when they come again.
  ///
  /// `most_ns`: false where it may take longer than this, by the tokens that it brings and the nodes that it asks for;
  /// then nothing was done.
  bool run(Step& step, const Tenants& tenants, StepHost& host, std::int64_t most_ns);
  /// The answer to a DraftRequest, or to a StreamDraftRequest, of `run`.
  std::optional<wire::Written> answer(std::string_view payload, bool is_enveloped, const Tenants& tenants,
                                      std::uint64_t draft_id, std::int64_t now_ns, StepHost& host, StepCounts& counts,
                                      std::int64_t most_ns);

 private:
  void check(Step& step, StepHost& host);
  void take(Step& step, std::size_t index, const Tenants& tenants);
  void add_rows(const Step& step, std::size_t index, Session& session);
  void learn_soon(const Step& step);
  void draft_all(Step& step, StepHost& host);
  void draft_from(Step& step, const std::vector<std::size_t>& indices, const ServedDrafter& graph,
                  std::size_t& max_entries);

  const StepLimits limits_;
  const std::shared_ptr<SessionTable> sessions_;
  std::mutex mutex_;                                // for what follows; held for a few instructions
  std::unordered_set<std::string> known_options_;   // that were checked
  std::vector<std::shared_ptr<Drafter>> learning_;  // that may not have learned from the latest steps yet
};

}  // namespace speculant
