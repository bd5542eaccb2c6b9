// One step of a batch, from the bytes of a request to the bytes of its response, for every strategy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sessions.hpp"
#include "wire.hpp"

namespace speculant {

/// Outcome for a sequence, numbered as on the wire.
enum class SequenceStatus : std::uint32_t { kOk = 1, kSessionLost, kOutOfSync };

struct StepLimits {
  std::size_t max_sequences, max_tokens;  // of one message
  std::uint32_t max_nodes;                // of one sequence
  std::uint64_t max_step_nodes;           // of all sequences of a step
  std::size_t max_message_bytes;          // of a response
  std::uint32_t budget;                   // default of the server
};

/// The tenants whose sessions the caller may use; all if there is no list.
using Tenants = std::optional<std::vector<std::string>>;

/// A step's calls to Python.
struct StepCallbacks {
  /// Throw if a StrategyOptions requests an option that is not served.
  std::function<void(const std::string& options)> check_options;
  /// The graph of this name, if the client may use it.
  std::function<ServedDrafter(const std::string& name)> graph_of;
  /// The default graph's generation, for a response without a graph.
  std::function<std::uint64_t()> default_generation;
};

/// Counts of a step.
struct StepCounts {
  std::size_t num_sequences = 0, num_nodes = 0, num_empty = 0, num_without_neural = 0;
  std::int64_t elapsed_ns = 0;
};

/// A step, and its results.
struct Step {
  struct Part : SequenceDraft {  // one sequence; the request may set its budget, seed and least probability
    std::size_t first_token = 0, first_row = 0;
    SequenceStatus status = SequenceStatus::kOk;
    std::uint64_t next_position = 0, generation = 0;
    // Null if the session is lost, or the sequence is stateless. If the caller sets it, the sequence gets a draft
    // without new tokens.
    std::shared_ptr<Session> session = {};
    const Distributions* distributions = nullptr;  // of its proposals; null if it has none

    void lose() {
      status = SequenceStatus::kSessionLost;
      next_position = generation = 0;
      session = nullptr, accepted.clear();
    }
  };
  wire::DraftRequest request;
  std::uint64_t draft_id;
  std::int64_t now_ns;
  std::shared_ptr<const DraftSettings> settings = {};  // instead of the request's options
  std::optional<std::size_t> max_entries = {};  // of all distributions; by default as many as fit into a response
  bool learns_later = false;                    // learning is deferred until its drafts are returned
  std::vector<Part> parts = {};
  std::vector<std::unique_ptr<Distributions>> distributions = {};  // one per graph
  std::size_t num_empty = 0, num_without_neural = 0;

  std::size_t size() const { return request.context_lengths.size(); }
  std::span<const std::uint32_t> context(std::size_t index) const {
    return std::span(request.context_tokens).subspan(parts[index].first_token, request.context_lengths[index]);
  }
};

/// Bytes of a response reserved for its envelope.
inline constexpr std::size_t kEnvelopeBytes = 32;

/// Answers steps from sessions and graphs. Safe to use from several threads.
class StepHandler {
 public:
  StepHandler(StepLimits limits, std::shared_ptr<SessionTable> sessions)
      : limits_(limits), sessions_(std::move(sessions)) {}

  /// Take the new tokens of all sequences, and draft for them. Throws if the step is refused. The tokens of sequences
  /// before the faulty one stay then; that is harmless, because repeated tokens are recognised.
  ///
  /// `most_ns`: if the step may take longer, do nothing and return false. The estimate uses its tokens and requested
  /// nodes.
  bool run(Step& step, const Tenants& tenants, StepCallbacks& host, std::int64_t most_ns);
  /// Run the step of a DraftRequest or StreamDraftRequest, and return the response; none if `run` returns false.
  std::optional<wire::Written> answer(std::string_view payload, bool is_enveloped, const Tenants& tenants,
                                      std::uint64_t draft_id, std::int64_t now_ns, StepCallbacks& host,
                                      StepCounts& counts, std::int64_t most_ns);

 private:
  void check(Step& step, StepCallbacks& host);
  void take(Step& step, std::size_t index, const Tenants& tenants);
  void add_top_k(const Step& step, std::size_t index, Session& session);
  void learn_soon(const Step& step);
  void draft_all(Step& step, StepCallbacks& host);
  void draft_from(Step& step, const std::vector<std::size_t>& indices, const ServedDrafter& graph,
                  std::size_t& max_entries);

  const StepLimits limits_;
  const std::shared_ptr<SessionTable> sessions_;
  std::mutex mutex_;                                // guards the members below; held for a few instructions
  std::unordered_set<std::string> known_options_;   // already checked
  std::vector<std::shared_ptr<Drafter>> learning_;  // their learning from the latest steps may be deferred
};

}  // namespace speculant
