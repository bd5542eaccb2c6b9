// One step of a batch, from the bytes of a request to the bytes of an answer, for every strategy.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "session_table.hpp"
#include "wire.hpp"

namespace speculant {

/// What became of a sequence; numbers of the wire.
enum class SequenceStatus : std::uint32_t { kOk = 1, kSessionLost, kOutOfSync, kInvalidToken };

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

/// Answers steps from sessions and graphs. Calls must not overlap.
class StepAnswerer {
 public:
  StepAnswerer(StepLimits limits, std::shared_ptr<SessionTable> sessions)
      : limits_(limits), sessions_(std::move(sessions)) {}

  /// The answer to a DraftRequest, or to a StreamDraftRequest. Throws if the step is refused: tokens of sequences
  /// before the one that is to blame were taken, which does no harm, as they are recognised when they come again.
  wire::Written answer(std::string_view payload, bool is_enveloped, const Tenants& tenants, std::uint64_t draft_id,
                       std::int64_t now_ns, StepHost& host, StepCounts& counts);

 private:
  struct Step;
  void check(Step& step, StepHost& host);
  void take(Step& step, std::size_t index, const Tenants& tenants);
  void draft_all(Step& step, StepHost& host);
  void draft_from(Step& step, const std::vector<std::size_t>& indices, const ServedDrafter& graph,
                  std::size_t& max_entries);

  StepLimits limits_;
  std::shared_ptr<SessionTable> sessions_;
  std::unordered_set<std::string> known_options_;  // that were checked
};

}  // namespace speculant
