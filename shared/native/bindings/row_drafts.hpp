// The rows of an engine's batch, and their drafts.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "rows.hpp"
#include "step.hpp"
#include "text.hpp"

namespace speculant {

/// The rows of a batch as they were given, and the sequences that they are.
struct Batch {
  Batch() = default;
  Batch(Batch&&) = default;
  nb::list given = {};
  std::vector<std::unique_ptr<Text>> texts = {};
  MatchedRows rows = {};
};

/// Leave out of drafts what does not pay: of all nodes the most probable ones are kept.
void keep_paying(Step& step, std::span<const double> seconds, double rate);

/// Drafts of the rows of a batch, one after another; made into Python's when they are asked for.
struct RowDrafts {
  std::vector<std::uint32_t> lengths;
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<double> probabilities;  // empty where the strategy has none
  std::size_t num_drafted = 0;        // nodes, those that were not kept included

  explicit RowDrafts(const Step& step) {
    for (const Step::Part& part : step.parts) part.draft.append_to(lengths, tokens, parents, probabilities);
  }
  RowDrafts(std::vector<std::uint32_t> lengths, std::vector<Token> tokens, std::vector<std::int32_t> parents,
            std::vector<double> probabilities, std::optional<std::size_t> num_drafted)
      : lengths(std::move(lengths)),
        tokens(std::move(tokens)),
        parents(std::move(parents)),
        probabilities(std::move(probabilities)),
        num_drafted(num_drafted.value_or(this->tokens.size())) {
    if (wire::sum(this->lengths) != this->tokens.size() || this->parents.size() != this->tokens.size() ||
        (!this->probabilities.empty() && this->probabilities.size() != this->tokens.size())) {
      throw RequestError("lengths, tokens, parents and probabilities are not of the same drafts");
    }
  }

  nb::list lists() const {
    nb::list rows;
    std::size_t node = 0;
    for (std::uint32_t length : lengths) {
      nb::list row;
      for (const std::size_t end = node + length; node < end; ++node) row.append(tokens[node]);
      rows.append(row);
    }
    return rows;
  }
};

}  // namespace speculant
