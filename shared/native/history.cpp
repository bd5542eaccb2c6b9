#include "history.hpp"

namespace speculant {

std::vector<Token> SessionHistory::latest(std::int64_t num_tokens) const {
  const std::int64_t count = std::clamp<std::int64_t>(num_tokens, 0, size() - ring_.oldest());
  std::vector<Token> tokens;
  tokens.reserve(static_cast<std::size_t>(count));
  for (std::int64_t position = size() - count; position < size(); ++position) tokens.push_back(at(position));
  return tokens;
}

void SessionHistory::fill(Window& window, std::int64_t end) const {
  for (std::int64_t back = 1; back <= kLookBack; ++back) {
    const Token token = end - back >= ring_.oldest() ? at(end - back) : kNoToken;
    window[static_cast<std::size_t>(kLookBack - back)] = as_sought(token);
  }
}

void SessionHistory::push(Token token, Window& window) {
  std::copy(window.begin() + 1, window.begin() + kLookBack, window.begin());
  window[kLookBack - 1] = as_sought(token);
  ring_.push(token, window.data() + kLookBack);
}

void SessionHistory::append(std::span<const Token> tokens) {
  reserve(std::ssize(tokens));
  Window window;
  fill(window);
  for (Token token : tokens) push(token, window);
}

}  // namespace speculant
