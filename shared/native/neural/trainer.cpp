#include "neural/trainer.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "neural/training.hpp"

namespace speculant::neural {
namespace {

// The learning rate begins at kRate and falls linearly to kLastRate of it.
constexpr float kRate = 0.2F, kLastRate = 0.05F;

/// Numbers of the blocks to learn from, evenly spread and shuffled. Blocks that overlap a left-out part are excluded.
std::vector<std::uint32_t> chosen_blocks(const Lesson& lesson, Chance& chance) {
  std::vector<std::uint32_t> blocks;
  auto next = lesson.left_out.begin();
  const auto num_blocks = static_cast<std::int64_t>(lesson.token_ids.size() / kBlock);
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const std::int64_t first = block * static_cast<std::int64_t>(kBlock), last = first + std::int64_t{kBlock};
    while (next != lesson.left_out.end() && next->second <= first) ++next;
    if (next == lesson.left_out.end() || next->first >= last) blocks.push_back(static_cast<std::uint32_t>(block));
  }
  if (blocks.empty()) return blocks;
  const auto size = static_cast<std::int64_t>(blocks.size());
  const std::int64_t wanted = std::max<std::int64_t>(lesson.num_positions / std::int64_t{kBlock}, 1);
  std::vector<std::uint32_t> chosen;
  for (std::int64_t done = 0; done < wanted; done += size) {  // every pass over the text has a different order
    const std::int64_t part = std::min(size, wanted - done);
    const auto start = std::ssize(chosen);
    for (std::int64_t each = 0; each < part; ++each) {
      const std::int64_t low = each * size / part, high = (each + 1) * size / part;
      chosen.push_back(blocks[static_cast<std::size_t>(
          low + static_cast<std::int64_t>(chance.below(static_cast<std::uint64_t>(high - low))))]);
    }
    for (std::int64_t left = part; left > 1; --left) {
      const auto other = static_cast<std::int64_t>(chance.below(static_cast<std::uint64_t>(left)));
      std::swap(chosen[static_cast<std::size_t>(start + left - 1)], chosen[static_cast<std::size_t>(start + other)]);
    }
  }
  return chosen;
}

/// Initial parameters: those of `start`, and new rows for the most frequent tokens without one.
Parameters first_parameters(const Model& start, std::span<const std::uint64_t> counts, double num_tokens) {
  Parameters parameters = start.empty() ? Parameters{} : parameters_of(start);
  Chance chance(kSeed);
  const auto fill = [&](std::vector<float>& values, std::size_t size, float deviation) {
    while (values.size() < size) values.push_back(deviation * chance.normal());
  };
  std::vector<Token> tokens;
  for (std::size_t token = 0; token < counts.size(); ++token) {
    if (counts[token] > 0 && start.row_of(static_cast<Token>(token)) == start.num_rows()) {
      tokens.push_back(static_cast<Token>(token));
    }
  }
  std::stable_sort(tokens.begin(), tokens.end(), [&](Token one, Token other) {
    return counts[static_cast<std::size_t>(one)] > counts[static_cast<std::size_t>(other)];
  });
  tokens.resize(std::min(tokens.size(), kMaxRows - parameters.tokens.size()));
  for (Token token : tokens) {
    const auto count = static_cast<double>(counts[static_cast<std::size_t>(token)]);
    parameters.bias.push_back(static_cast<float>(logarithm((count + kUnseenCount) / num_tokens)));
  }
  parameters.tokens.insert(parameters.tokens.end(), tokens.begin(), tokens.end());
  fill(parameters.context, parameters.tokens.size() * kWidth, 0.1F);
  fill(parameters.output, parameters.tokens.size() * kWidth, 0.1F);
  fill(parameters.hidden_in, kHidden * kWidth, 0.1F);
  fill(parameters.hidden_out, kHidden * kWidth, 0.02F);
  parameters.hidden_bias.resize(kHidden);
  for (std::size_t place = parameters.scales.size() / kWidth; place <= kPlaces; ++place) {
    const float scale = place == kPlaces ? 0.5F : 1.0F / (1.0F + static_cast<float>(place));
    parameters.scales.insert(parameters.scales.end(), kWidth, scale);
  }
  return parameters;
}

}  // namespace

std::vector<std::uint32_t> train(const Lesson& lesson, const Model& start,
                                 const std::function<bool(std::int64_t, std::int64_t)>& goes_on) {
  constexpr std::int64_t kBlocksBetweenCalls = 256;
  Chance chance(kSeed);
  const std::vector<std::uint32_t> blocks = chosen_blocks(lesson, chance);
  if (blocks.empty()) return {};
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(lesson.vocabulary_size));
  double num_tokens = 0.0;
  for (std::uint32_t id : lesson.token_ids) {
    if (id < counts.size()) ++counts[id], num_tokens += 1.0;
  }
  Parameters parameters = first_parameters(start, counts, num_tokens);
  if (parameters.tokens.empty()) return {};
  const auto num_rows = static_cast<std::uint32_t>(parameters.tokens.size());
  std::vector<std::uint32_t> row_of(counts.size(), num_rows);
  std::vector<double> of_rows(num_rows);
  for (std::uint32_t row = 0; row < num_rows; ++row) {
    const auto token = static_cast<std::size_t>(parameters.tokens[row]);
    row_of[token] = row;
    of_rows[row] = static_cast<double>(counts[token]);
  }
  const auto training = std::make_unique<Training>(parameters, of_rows);
  std::array<std::uint32_t, kLookBack + kBlock> rows;
  const auto all = std::ssize(blocks);
  for (std::int64_t done = 0; done < all; ++done) {
    if (done % kBlocksBetweenCalls == 0 && !goes_on(done * std::int64_t{kBlock}, all * std::int64_t{kBlock})) return {};
    const std::int64_t first =
        std::int64_t{blocks[static_cast<std::size_t>(done)]} * std::int64_t{kBlock} - std::int64_t{kLookBack};
    for (std::size_t each = 0; each < rows.size(); ++each) {
      const std::int64_t position = first + static_cast<std::int64_t>(each);
      const std::uint32_t id = position < 0 ? kDocumentEnd : lesson.token_ids[static_cast<std::size_t>(position)];
      rows[each] = id < row_of.size() ? row_of[id] : num_rows + 1;
    }
    const float share = static_cast<float>(done) / static_cast<float>(all);
    training->learn(rows, kRate * (1.0F - (1.0F - kLastRate) * share));
  }
  goes_on(all * std::int64_t{kBlock}, all * std::int64_t{kBlock});
  return words_of(parameters, lesson.vocabulary_size);
}

}  // namespace speculant::neural
