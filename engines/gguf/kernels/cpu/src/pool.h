// Threads that share a piece of work, and sleep when there is none.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace innkeeper {

// The caller works too. Parts are taken from a common counter, so a thread that the system holds up, or that wakes late, costs
// no more than the part it is at. One piece of work at a time; a second caller waits.
class ThreadPool {
 public:
  using Work = std::function<void(int64_t begin, int64_t end)>;

  // The one pool of this process; never destroyed, since threads may outlive static objects.
  static ThreadPool& shared();

  // Threads from now on, the caller's among them; at least 1. They are started when there is work for them.
  void resize(int threads);
  int size() const { return threads_.load(std::memory_order_relaxed); }

  // Calls work on parts that make up [0, count), each of `grain` items or more but for the last.
  void run(int64_t count, int64_t grain, const Work& work);

 private:
  struct Helper {
    std::thread thread;
    std::atomic<bool> stop{false};
  };

  void start_helpers();
  void help(Helper& self);
  void take_parts();

  std::mutex one_caller_;
  std::atomic<int> threads_{1};
  std::vector<std::unique_ptr<Helper>> helpers_;  // written under one_caller_

  // The work at hand: written before `open_` is set, read by helpers that saw it set while counted in `busy_`.
  const Work* work_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<bool> open_{false};
  std::atomic<int> busy_{0};            // helpers that may be at work
  std::atomic<uint32_t> announced_{0};  // raised with each piece of work: what sleeping helpers wait on
};

}  // namespace innkeeper
