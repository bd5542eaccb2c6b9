// Code shared by readers and writers of messages: their fields, and the tags of numbers.
#pragma once

#include <cstdint>
#include <tuple>

#include "wire.hpp"

namespace speculant::wire {

enum WireType : std::uint32_t { kVarint, kFixed64, kLength, kGroup, kEndOfGroup, kFixed32 };

/// The fields of a message, number 1 first.
template <class Struct>
inline constexpr auto kFields = nullptr;
template <>
inline constexpr auto kFields<Duration> = std::tuple{&Duration::seconds, &Duration::nanos};
template <>
inline constexpr auto kFields<DraftRequest> = std::tuple{&DraftRequest::graph,
                                                         &DraftRequest::session_ids,
                                                         &DraftRequest::positions,
                                                         &DraftRequest::context_lengths,
                                                         &DraftRequest::context_tokens,
                                                         &DraftRequest::node_budgets,
                                                         &DraftRequest::options,
                                                         &DraftRequest::seeds,
                                                         &DraftRequest::feedback_draft_ids,
                                                         &DraftRequest::feedback_row_counts,
                                                         &DraftRequest::feedback_nodes,
                                                         &DraftRequest::feedback_width,
                                                         &DraftRequest::feedback_tokens,
                                                         &DraftRequest::least_path_probabilities};
template <>
inline constexpr auto kFields<DraftResponse> = std::tuple{&DraftResponse::graph_generation,
                                                          &DraftResponse::draft_id,
                                                          &DraftResponse::sequence_statuses,
                                                          &DraftResponse::next_positions,
                                                          &DraftResponse::draft_lengths,
                                                          &DraftResponse::draft_tokens,
                                                          &DraftResponse::draft_parents,
                                                          &DraftResponse::draft_path_probabilities,
                                                          &DraftResponse::candidate_counts,
                                                          &DraftResponse::candidate_tokens,
                                                          &DraftResponse::candidate_probabilities,
                                                          &DraftResponse::server_time,
                                                          &DraftResponse::ended_early,
                                                          &DraftResponse::sequence_generations};
template <>
inline constexpr auto kFields<StreamDraftRequest> =
    std::tuple{&StreamDraftRequest::step_id, &StreamDraftRequest::draft};

}  // namespace speculant::wire
