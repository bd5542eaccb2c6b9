#include "graph_drafter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "random_stream.hpp"

namespace speculant {
namespace {

/// The entry of the token of the largest log q + noise, of equals the first.
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

std::size_t draft_greedy(const Trie& trie, Context context, std::span<Token> tokens) {
  std::size_t size = 0;
  for (; size < tokens.size() && context.order > 0; ++size) {
    const std::int64_t child = trie.argmax_child(context, trie.children(context));
    tokens[size] = trie.level(context.order + 1).token(child);
    context = trie.shift(context, child);
  }
  return size;
}

void draw_chains(const Trie& trie, std::span<GraphDraft> drafts, const DistributionOptions& options, bool is_coupled,
                 std::size_t max_entries, Distributions& out) {
  Masses masses;
  int deepest = 0;
  const std::size_t start = out.tokens.size();
  for (const GraphDraft& draft : drafts) {
    deepest = std::max(deepest, draft.budget);
    trie.prefetch_record(draft.context);
  }
  for (int depth = 0; depth < deepest; ++depth) {
    const auto goes_on = [&](const GraphDraft& draft) {
      return depth < draft.budget && std::ssize(draft.tokens) == depth && draft.context.order > 0;
    };
    bool is_going = false;
    for (GraphDraft& draft : drafts) {
      if (!goes_on(draft)) continue;
      draft.context = trie.back_off(draft.context);
      trie.prefetch_children(draft.context);
    }
    for (GraphDraft& draft : drafts) {
      if (!goes_on(draft)) continue;
      masses.read(trie, draft.context, options);
      const std::size_t kept = out.tokens.size();
      if (max_entries > 0 && kept - start + masses.max_entries(options) > max_entries) continue;
      const Distributions::Span q = masses.append_to(out, options);
      if (q.size() == 0) continue;
      const std::uint64_t position = draft.position + static_cast<std::uint64_t>(depth);
      const std::size_t entry =
          is_coupled ? draw_coupled(out, q, draft.seed, position)
                     : q.first + draw(out.probabilities_of(q), uniform(draft.seed, position, kProposalStream));
      const auto token = static_cast<Token>(out.tokens[entry]);
      draft.tokens.push_back(token);
      draft.parents.push_back(depth);
      if (max_entries > 0) {
        draft.proposals.push_back(q);
      } else {
        out.resize(kept);
      }
      draft.context = context_after(trie, draft.context, token);
      trie.prefetch_record(draft.context);
      is_going = true;
    }
    if (!is_going) break;
  }
}

}  // namespace speculant
