#include "graph_drafter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "random_stream.hpp"

namespace speculant {
namespace {

/// The entry of a distribution at a quantile.
std::size_t draw(std::span<const float> probabilities, double quantile) {
  double cumulative = 0.0;
  for (std::size_t entry = 0; entry < probabilities.size(); ++entry) {
    cumulative += static_cast<double>(probabilities[entry]);
    if (cumulative > quantile) return entry;
  }
  return probabilities.size() - 1;  // rounding may leave the sum below 1; the rest belongs to the last token
}

/// The entry of the token with the largest log q + noise, the first among equals.
std::size_t draw_coupled(const Distributions& all, Distributions::Span q, std::uint64_t seed, std::uint64_t position) {
  const std::uint64_t key = noise_key(seed, position);
  std::size_t best = q.first;
  double highest = -std::numeric_limits<double>::infinity();
  for (std::size_t entry = q.first; entry < q.last; ++entry) {
    const double value =
        std::log(static_cast<double>(all.probabilities[entry])) + gumbel_noise(noise_word(key, all.tokens[entry]));
    if (value > highest) best = entry, highest = value;
  }
  return best;
}

}  // namespace

Context context_after(const Trie& trie, Context context, Token token) {
  const std::int64_t child = trie.find_child(trie.level(context.order + 1), trie.children(context), token);
  return child < 0 ? Context{} : trie.shift(context, child);  // found, unless the file is damaged
}

void draft_greedy(std::span<GraphDraft> sequences) {
  for (GraphDraft& each : sequences) {
    const Trie& trie = *each.trie;
    while (std::cmp_less(each.draft.size(), each.budget) && each.context.order > 0) {
      const std::int64_t child = trie.argmax_child(each.context, trie.children(each.context));
      each.draft.add(each.draft.last(), trie.level(each.context.order + 1).token(child));
      each.context = trie.shift(each.context, child);
    }
  }
}

void draw_chains(std::span<GraphDraft> sequences, const DistributionOptions& options, bool is_coupled,
                 std::size_t max_entries, Distributions& out) {
  Weights weights;
  int deepest = 0;
  const std::size_t start = out.tokens.size();
  for (const GraphDraft& each : sequences) {
    deepest = std::max(deepest, each.budget);
    each.trie->prefetch_record(each.context);
  }
  for (int depth = 0; depth < deepest; ++depth) {
    const auto goes_on = [&](const GraphDraft& each) {
      return depth < each.budget && std::cmp_equal(each.draft.size(), depth) && each.context.order > 0;
    };
    bool is_going = false;
    for (GraphDraft& each : sequences) {
      if (!goes_on(each)) continue;
      each.context = each.trie->back_off(each.context);
      each.trie->prefetch_children(each.context);
    }
    for (GraphDraft& each : sequences) {
      if (!goes_on(each)) continue;
      weights.read(*each.trie, each.context, options);
      const std::size_t kept = out.tokens.size();
      if (max_entries > 0 && kept - start + weights.max_entries(options) > max_entries) continue;
      const Distributions::Span q = weights.append_to(out, options);
      if (q.size() == 0) continue;
      const std::uint64_t position = each.position + static_cast<std::uint64_t>(depth);
      const std::size_t entry =
          is_coupled ? draw_coupled(out, q, each.seed, position)
                     : q.first + draw(out.probabilities_of(q), uniform(each.seed, position, kProposalStream));
      const auto token = static_cast<Token>(out.tokens[entry]);
      if (max_entries > 0) {
        each.draft.add(each.draft.last(), token, q);
      } else {
        each.draft.add(each.draft.last(), token);
        out.resize(kept);
      }
      each.context = context_after(*each.trie, each.context, token);
      each.trie->prefetch_record(each.context);
      is_going = true;
    }
    if (!is_going) break;
  }
}

}  // namespace speculant
