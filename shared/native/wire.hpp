// The messages of a step (`protos/…/drafter.proto`), read and written as structs of arrays, without protobuf's
// library.
//
// Reads whatever protobuf's own parser would: packed arrays in one run or several, elements that were not packed,
// fields that came twice, unknown ones; refuses what it would refuse. Arrays of fixed width are, on the wire, the
// little-endian array itself. Only the options, and what a failure holds, are left to protobuf: both are rare.
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

/// What was read is no such message.
struct ParseError : std::runtime_error {
  ParseError() : std::runtime_error("the message can't be parsed") {}
};

/// A message within a message, which is read elsewhere.
struct Message {
  std::string bytes;
};

struct Duration {
  std::int64_t seconds = 0;
  std::int32_t nanos = 0;

  static Duration of(std::int64_t ns) { return {ns / kNsPerS, static_cast<std::int32_t>(ns % kNsPerS)}; }
  /// Of more than a number can say, something: whatever wraps is unsigned.
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

/// An envelope; the step in it is read apart, so that one that can't be read is refused in an answer with its id.
struct StreamDraftRequest {
  std::uint64_t step_id = 0;
  Message draft;
};

struct StreamDraftResponse {
  std::uint64_t step_id = 0;
  Message step;  // a DraftResponse or a StepError, whichever came last
  bool is_error = true;
};

/// Read a message. Throws ParseError where it is none.
DraftRequest read_request(std::string_view payload);
DraftResponse read_response(std::string_view payload);
StreamDraftRequest read_stream_request(std::string_view payload);
StreamDraftResponse read_stream_response(std::string_view payload);

/// A message that was written, and, if it was asked for, the envelope round it.
class Written {
 public:
  std::string_view view() const { return std::string_view(buffer_).substr(start_); }

  std::string buffer_;
  std::size_t start_ = 0;
};

/// Write a message; arrays without elements are left out, as are numbers that are 0.
template <class Struct>
Written write(const Struct& message);
/// Put a StreamDraftRequest or StreamDraftResponse round a message.
void envelope(Written& message, std::uint64_t step_id);

inline std::uint64_t sum(const std::vector<std::uint32_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0});
}

/// Check the length of an array; `meaning` says where the expected one comes from.
template <class Number>
void expect(const char* name, const std::vector<Number>& values, std::uint64_t expected, const char* meaning) {
  if (values.size() == expected) return;
  throw RequestError(std::string(name) + " has " + std::to_string(values.size()) + " entries; " + meaning + " is " +
                     std::to_string(expected));
}

/// What a client must know of an answer before it verifies a draft: that it breaks no rule of the wire. Fill arrays
/// that stand for defaults, and check all: a draft that passes can be verified safely. `budgets`: per sequence, most
/// nodes asked for. `vocabulary_size`: ids of drafts and distributions must be below it. Throws RequestError.
void check_answer(DraftResponse& answer, std::span<const std::int64_t> budgets, std::int64_t vocabulary_size);

}  // namespace speculant::wire
