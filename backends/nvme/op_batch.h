// OpBatch: the results of one call of many operations.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace terrace {

// `done` when the last of them is known. The owner's thread only, but for what makes it.
template <typename Op, typename Answer>
struct OpBatch {
  OpBatch(std::vector<Op> all, std::function<void(std::span<const Answer>)> when_done)
      : ops(std::move(all)), answers(ops.size()), open(ops.size()), done(std::move(when_done)) {}

  std::vector<Op> ops;
  std::vector<Answer> answers;
  size_t open = 0;
  std::function<void(std::span<const Answer>)> done;

  void Set(size_t index, Answer answer) {
    answers[index] = std::move(answer);
    if (--open == 0) std::exchange(done, nullptr)(answers);
  }
  // Nothing was begun.
  void Refuse(const Answer& answer) {
    ops.clear();
    std::fill(answers.begin(), answers.end(), answer);
    std::exchange(done, nullptr)(answers);
  }
};

}  // namespace terrace
