#include "pool.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace innkeeper {

namespace {

// How often a thread looks before it sleeps: some 20 microseconds, about what waking it costs. One layer's products follow
// each other faster than that.
constexpr int kLooks = 600;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool& ThreadPool::shared() {
  static ThreadPool* pool = new ThreadPool;
  return *pool;
}

void ThreadPool::resize(int threads) {
  const std::lock_guard lock(one_caller_);
  threads = std::max(threads, 1);
  while (static_cast<int>(helpers_.size()) > threads - 1) {
    Helper& last = *helpers_.back();
    last.stop = true;
    announced_.fetch_add(1);
    announced_.notify_all();
    last.thread.join();
    helpers_.pop_back();
  }
  threads_ = threads;
}

void ThreadPool::start_helpers() {
  while (static_cast<int>(helpers_.size()) < size() - 1) {
    helpers_.push_back(std::make_unique<Helper>());
    Helper& helper = *helpers_.back();
    helper.thread = std::thread([this, &helper] { help(helper); });
  }
}

void ThreadPool::run(int64_t count, int64_t grain, const Work& work) {
  grain = std::max<int64_t>(grain, 1);
  if (count <= grain || size() == 1) {
    if (count > 0) work(0, count);
    return;
  }
  const std::lock_guard lock(one_caller_);
  start_helpers();
  work_ = &work;
  count_ = count;
  grain_ = grain;
  next_.store(0);
  open_.store(true);
  announced_.fetch_add(1);
  announced_.notify_all();
  take_parts();
  // Whoever comes from here on sees that it is closed; whoever came before is counted.
  open_.store(false);
  for (int look = 0;; look++) {
    const int busy = busy_.load();
    if (busy == 0) break;
    if (look < kLooks) {
      pause();
    } else {
      busy_.wait(busy);
    }
  }
}

void ThreadPool::take_parts() {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_);
    if (begin >= count_) return;
    (*work_)(begin, std::min(begin + grain_, count_));
  }
}

void ThreadPool::help(Helper& self) {
  uint32_t seen = 0;
  for (;;) {
    for (int look = 0; announced_.load() == seen; look++) {
      if (look < kLooks) {
        pause();
      } else {
        announced_.wait(seen);
      }
    }
    seen = announced_.load();
    if (self.stop) return;
    busy_.fetch_add(1);
    if (open_.load()) take_parts();
    if (busy_.fetch_sub(1) == 1) busy_.notify_all();
  }
}

}  // namespace innkeeper
