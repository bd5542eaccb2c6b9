// The rows of an engine's batch, and their drafts.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "rows.hpp"
#include "step.hpp"
#include "text.hpp"

namespace speculant {

/// The rows of a batch as given, and their sequences.
struct Batch {
  Batch() = default;
  Batch(Batch&&) = default;
  nb::list given = {};
  std::vector<std::unique_ptr<Text>> texts = {};
  MatchedRows rows = {};
};

/// Drop nodes that do not pay for their verification: keep the most probable nodes of all drafts.
void keep_paying(Step& step, std::span<const double> seconds, double rate);

/// Drafts of the rows of a batch, concatenated; converted to Python objects on access.
struct RowDrafts {
  std::vector<std::uint32_t> lengths;
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<double> probabilities;  // empty if the strategy has none
  std::size_t num_drafted = 0;        // nodes, including those that were not kept

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
