// The messages of a step (`protos/…/drafter.proto`), read and written as structs of arrays, without protobuf's
// library.
//
// Reads whatever protobuf's own parser would: packed arrays in one run or several, elements that were not packed,
// fields that came twice, unknown ones; refuses what it would refuse. Arrays of fixed width are, on the wire, the
// little-endian array itself. Only the options, and what a failure holds, are left to protobuf: both are rare.
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace speculant::wire {

static_assert(std::endian::native == std::endian::little, "arrays travel as they lie in memory");

/// What was read is no such message.
struct ParseError : std::runtime_error {
  ParseError() : std::runtime_error("the message can't be parsed") {}
};

/// A message within a message, as bytes: a view of the whole, unless it came in several runs, which are one message.
class Part {
 public:
  void add(std::string_view run) {
    if (!has_run_) {
      first_ = run;
    } else {
      if (joined_.empty()) joined_ = first_;
      joined_ += run;
    }
    has_run_ = true;
  }
  std::string_view view() const { return joined_.empty() ? first_ : std::string_view(joined_); }
  bool has_run() const { return has_run_; }

 private:
  std::string_view first_;
  std::string joined_;
  bool has_run_ = false;
};

struct DraftRequest {
  std::string graph;  // valid UTF-8
  std::vector<std::uint64_t> session_ids, positions;
  std::vector<std::uint32_t> context_lengths, context_tokens, node_budgets;
  std::string options;  // a StrategyOptions
  std::vector<std::uint64_t> seeds, feedback_draft_ids;
  std::vector<std::uint32_t> feedback_row_counts, feedback_nodes;
  std::uint32_t feedback_width = 0;
  std::vector<std::uint32_t> feedback_tokens;
};

struct DraftResponse {
  std::uint64_t graph_generation = 0, draft_id = 0;
  std::vector<std::uint32_t> sequence_statuses;
  std::vector<std::uint64_t> next_positions;
  std::vector<std::uint32_t> draft_lengths, draft_tokens, draft_parents;
  std::vector<float> draft_path_probabilities;
  std::vector<std::uint32_t> candidate_counts, candidate_tokens;
  std::vector<float> candidate_probabilities;
  std::int64_t server_time_ns = 0;
  std::vector<std::uint32_t> ended_early;
  std::vector<std::uint64_t> sequence_generations;
};

/// An envelope; the step in it is read apart, so that one that can't be read is refused in an answer with its id.
struct StreamDraftRequest {
  std::uint64_t step_id = 0;
  Part draft;
};

struct StreamDraftResponse {
  std::uint64_t step_id = 0;
  Part draft, error;  // one of them at most: the one that came last
};

/// Read a message. Throws ParseError where it is none. Parts view `payload`.
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
Written write(const DraftRequest& request);
Written write(const DraftResponse& response);
/// Put a StreamDraftRequest or StreamDraftResponse round a message.
void envelope(Written& message, std::uint64_t step_id);

}  // namespace speculant::wire
