// Drafting in this process: a server's step without its messages.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "step.hpp"
#include "text.hpp"

namespace speculant {

inline constexpr std::uint32_t kNoId = std::numeric_limits<std::uint32_t>::max();  // in no vocabulary

inline std::uint32_t id_of(std::int64_t number) {
  return 0 <= number && number < kNoId ? static_cast<std::uint32_t>(number) : kNoId;
}

/// The target's feedback on the latest draft of a sequence.
struct LocalFeedback {
  std::uint64_t draft_id;
  std::vector<std::uint32_t> nodes;
  Table<const std::int64_t> rows;
};

/// The sessions of one drafter in this process, and their steps. Called with the GIL, which guards its state.
class LocalSteps {
 public:
  explicit LocalSteps(std::shared_ptr<Drafter> drafter)
      : drafter_(std::move(drafter)),
        table_(std::make_shared<SessionTable>(kNoLimits)),
        steps_(kAnyStep, table_),
        host_{.graph_of = [drafter = drafter_](const std::string&) { return ServedDrafter{drafter, 1}; }} {}

  std::size_t size() const { return known_.size(); }
  /// Open a session; throws RequestError if its number is in use.
  void open(std::uint64_t id, std::shared_ptr<LearnedMemory> memory, bool learns);
  /// End a session and return what its memory has learned.
  std::vector<Token> end(std::uint64_t id);

  /// Add tokens to a sequence, and rows of the target for its latest draft.
  void accept(std::uint64_t id, std::span<const std::int64_t> ids, bool is_prompt);
  void add_top_k(std::uint64_t id, std::span<const std::int64_t> nodes, const Table<const std::int64_t>& rows);
  /// A sequence's own memory, in bytes.
  std::int64_t num_bytes(std::uint64_t id);

  /// The sequences whose texts do not continue their known tokens.
  std::vector<std::uint64_t> changed(const std::vector<std::uint64_t>& ids, const nb::list& texts) const;

  /// A step that requests drafts.
  static Step begin(const DraftSettings& settings, std::uint64_t draft_id,
                    std::optional<std::size_t> max_entries = std::nullopt) {
    return {.request = {},
            .draft_id = draft_id,
            .now_ns = 0,
            .settings = std::make_shared<DraftSettings>(settings),
            .max_entries = max_entries,
            .learns_later = true};
  }
  /// Add a sequence to a step, with the new tokens of its text; an empty text adds none. The caller fills the other
  /// fields.
  SequenceDraft& add(Step& step, std::uint64_t id, const Text& text, std::int64_t budget);
  /// Add a sequence without a session.
  static SequenceDraft& add_stateless(Step& step, const Text& text, std::int64_t budget, std::uint64_t position);
  /// Add the target's feedback on latest drafts. Feedback on nodes outside the draft is ignored.
  void add_feedback(Step& step, std::vector<std::optional<LocalFeedback>> feedback,
                    const std::vector<std::uint64_t>& ids) const;
  /// Answer a step, with or without sessions; learning happens after this has returned.
  void run(Step& step, const std::vector<std::uint64_t>& ids);

 private:
  // Number of last tokens that must agree for a caller's text to continue the session's. A guess: a text with an
  // earlier change keeps its session, and its drafts are worse.
  static constexpr std::size_t kTail = 16;

  struct Known {
    std::shared_ptr<Session> session = {};
    std::size_t size = 0;
    std::array<std::uint32_t, kTail> tail = {};  // each token at its position modulo kTail
    std::size_t num_nodes = 0;                   // of its latest draft

    /// Record further tokens; the last few are stored.
    template <class Ids>
    void take(const Ids& ids) {
      const std::size_t first = ids.size() - std::min(ids.size(), kTail);
      for (std::size_t each = first; each < ids.size(); ++each) tail[(size + each) % kTail] = id_of(ids[each]);
      size += ids.size();
    }
  };
  std::vector<Token> end(Session& session);
  /// The state of an open session. Throws RequestError if there is none.
  const Known& known(std::uint64_t id) const;
  Known& known(std::uint64_t id) { return const_cast<Known&>(std::as_const(*this).known(id)); }

  // In this process there are no limits between clients. kFar is half the largest number, so that sums with it do not
  // overflow. There is no message; its limit of 1 GB only bounds the distributions of a step.
  static constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 2;
  static constexpr SessionLimits kNoLimits{std::numeric_limits<std::size_t>::max(), kFar, kFar, 0};
  static constexpr StepLimits kAnyStep{.max_sequences = std::numeric_limits<std::size_t>::max(),
                                       .max_tokens = std::numeric_limits<std::size_t>::max(),
                                       .max_nodes = std::numeric_limits<std::uint32_t>::max(),
                                       .max_step_nodes = std::numeric_limits<std::uint64_t>::max(),
                                       .max_message_bytes = std::size_t{1} << 30,
                                       .budget = 0};

  std::shared_ptr<Drafter> drafter_;
  std::shared_ptr<SessionTable> table_;
  StepHandler steps_;
  StepCallbacks host_;  // used only for the graph, because the settings are given
  std::unordered_map<std::uint64_t, Known> known_;
  std::uint64_t last_number_ = 0;  // of a session; callers may count theirs from 0, which means no session in a step
  std::mutex ending_;              // held without the GIL, so that no thread takes the learned text of another session
};

}  // namespace speculant
