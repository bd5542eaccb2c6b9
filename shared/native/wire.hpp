// The messages of a step (`protos/…/drafter.proto`), read and written as structs of arrays, without protobuf's
// library.
//
// Accepts and refuses the same input as protobuf's own parser: packed arrays in one run or several, unpacked elements,
// repeated fields, unknown fields. On the wire, an array of fixed width is the little-endian array itself. Protobuf
// itself handles only options and errors, because both are rare.
#pragma once

#include <bit>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "errors.hpp"

namespace speculant::wire {

static_assert(std::endian::native == std::endian::little, "arrays travel as they lie in memory");

/// The bytes are not a message of the expected type.
struct ParseError : std::runtime_error {
  ParseError() : std::runtime_error("the message can't be parsed") {}
};

/// A nested message, which other code reads.
struct Message {
  std::string bytes;
};

struct Duration {
  std::int64_t seconds = 0;
  std::int32_t nanos = 0;

  static Duration of(std::int64_t ns) { return {ns / kNsPerS, static_cast<std::int32_t>(ns % kNsPerS)}; }
  /// Nanoseconds; if out of range, an unspecified number, by unsigned wrap-around.
  std::int64_t ns() const {
    const std::uint64_t whole = static_cast<std::uint64_t>(seconds) * static_cast<std::uint64_t>(kNsPerS);
    return static_cast<std::int64_t>(whole + static_cast<std::uint64_t>(std::int64_t{nanos}));
  }
  static constexpr std::int64_t kNsPerS = 1'000'000'000;
};

struct DraftRequest {
  std::string graph;  // valid UTF-8
  std::vector<std::uint64_t> session_ids, positions;
  std::vector<std::uint32_t> context_lengths, context_tokens, node_budgets;
  Message options;  // a StrategyOptions
  std::vector<std::uint64_t> seeds, feedback_draft_ids;
  std::vector<std::uint32_t> feedback_row_counts, feedback_nodes;
  std::uint32_t feedback_width = 0;
  std::vector<std::uint32_t> feedback_tokens;
  std::vector<float> least_path_probabilities;
};

struct DraftResponse {
  std::uint64_t graph_generation = 0, draft_id = 0;
  std::vector<std::uint32_t> sequence_statuses;
  std::vector<std::uint64_t> next_positions;
  std::vector<std::uint32_t> draft_lengths, draft_tokens, draft_parents;
  std::vector<float> draft_path_probabilities;
  std::vector<std::uint32_t> candidate_counts, candidate_tokens;
  std::vector<float> candidate_probabilities;
  Duration server_time;
  std::vector<std::uint32_t> ended_early;
  std::vector<std::uint64_t> sequence_generations;
};

/// An envelope. The step in it is read separately, so that an invalid step is refused in a response with its id.
struct StreamDraftRequest {
  std::uint64_t step_id = 0;
  Message draft;
};

struct StreamDraftResponse {
  std::uint64_t step_id = 0;
  Message step;  // a DraftResponse or a StepError, whichever came last
  bool is_error = true;
};

/// Read a message. Throws ParseError if it can't be parsed.
DraftRequest read_request(std::string_view payload);
DraftResponse read_response(std::string_view payload);
StreamDraftRequest read_stream_request(std::string_view payload);
StreamDraftResponse read_stream_response(std::string_view payload);

/// A written message, with an envelope if requested.
class Written {
 public:
  std::string_view view() const { return std::string_view(buffer_).substr(start_); }

  std::string buffer_;
  std::size_t start_ = 0;
};

/// Write a message; empty arrays and zeros are omitted.
template <class Struct>
Written write(const Struct& message);
/// Wrap a message in a StreamDraftRequest or StreamDraftResponse.
void envelope(Written& message, std::uint64_t step_id);

inline std::uint64_t sum(const std::vector<std::uint32_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0});
}

/// Check the length of an array; `meaning` describes the expected length.
template <class Number>
void expect(const char* name, const std::vector<Number>& values, std::uint64_t expected, const char* meaning) {
  if (values.size() == expected) return;
  throw RequestError(std::string(name) + " has " + std::to_string(values.size()) + " entries; " + meaning + " is " +
                     std::to_string(expected));
}

/// Check a client's response before a draft is verified. Fills arrays of defaults, and checks every rule of the wire,
/// so that a checked draft can be verified safely. `budgets`: requested nodes per sequence. `vocabulary_size`: ids of
/// drafts and distributions must be below it. Throws RequestError.
void check_answer(DraftResponse& answer, std::span<const std::int64_t> budgets, std::int64_t vocabulary_size);

}  // namespace speculant::wire
