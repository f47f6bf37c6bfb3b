// Workers wait by spinning for a moment and then sleeping: kernels follow each other within
// microseconds while a step is computed, and not at all between steps.
#include "thread_pool.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace deepinfer {
namespace {

constexpr int kSpins = 2000;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#if defined(__linux__)
// A worker begins on its creator's processors. OpenMP may have tied that thread to one of several
// that the process has; together, its threads know them.
void leave_crowded_processors(int num_threads) {
  cpu_set_t own;
  if (sched_getaffinity(0, sizeof own, &own) != 0 || CPU_COUNT(&own) >= num_threads) return;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return;
  while (const dirent* task = readdir(tasks)) {
    cpu_set_t other;
    const int id = std::atoi(task->d_name);
    if (id > 0 && sched_getaffinity(id, sizeof other, &other) == 0) CPU_OR(&own, &own, &other);
  }
  closedir(tasks);
  sched_setaffinity(0, sizeof own, &own);
}
#else
void leave_crowded_processors(int) {}
#endif

struct Job {
  const PartFunction* function;
  std::int64_t num_parts;
  int num_threads;

  void run_share(int thread) const {
    const std::int64_t end = num_parts * (thread + 1) / num_threads;
    for (std::int64_t part = num_parts * thread / num_threads; part < end; ++part) {
      (*function)(part);
    }
  }
};

class Pool {
 public:
  void run(const Job& job) {
    std::lock_guard<std::mutex> one_job_at_a_time(callers_);
    while (num_workers_ < job.num_threads - 1) add_worker(job.num_threads);
    job_ = job;
    pending_.store(num_workers_, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (num_sleeping_.load() > 0) wake_.notify_all();
    run_noting_failure(0);
    wait_until_done();
    // The caller's alone: kept here until the next job, another caller would free it.
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void add_worker(int num_threads) {
    const std::uint64_t seen = generation_.load();
    std::thread([this, number = num_workers_ + 1, seen, num_threads] {
      leave_crowded_processors(num_threads);
      work(number, seen);
    }).detach();
    ++num_workers_;
  }

  void work(int number, std::uint64_t seen) {
    for (;;) {
      wait_for_job_after(seen);
      ++seen;
      if (number < job_.num_threads) run_noting_failure(number);
      if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard<std::mutex> lock(mutex_);
        done_.notify_one();
      }
    }
  }

  void run_noting_failure(int thread) {
    try {
      job_.run_share(thread);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  void wait_for_job_after(std::uint64_t seen) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (generation_.load(std::memory_order_acquire) != seen) return;
      relax();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    num_sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    num_sleeping_.fetch_sub(1);
  }

  void wait_until_done() {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (pending_.load(std::memory_order_acquire) == 0) return;
      relax();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return pending_.load(std::memory_order_acquire) == 0; });
  }

  std::mutex callers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<int> pending_{0};
  std::atomic<int> num_sleeping_{0};
  int num_workers_ = 0;
  Job job_{};
  std::exception_ptr failure_;
};

// Never destroyed: workers may outlive the interpreter's end. A forked child has no workers, so it
// begins with a pool of its own.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
  static std::mutex creation;
  Pool* found = the_pool.load(std::memory_order_acquire);
  if (found == nullptr) {
    std::lock_guard<std::mutex> lock(creation);
    found = the_pool.load();
    if (found == nullptr) {
      static const int registered =
          pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });
      (void)registered;
      found = new Pool;
      the_pool.store(found, std::memory_order_release);
    }
  }
  return *found;
}

}  // namespace

void run_parts(int num_threads, std::int64_t num_parts, const PartFunction& function) {
  if (num_threads > num_parts) num_threads = static_cast<int>(num_parts);
  const Job job{&function, num_parts, num_threads < 1 ? 1 : num_threads};
  if (job.num_threads == 1) {
    job.run_share(0);
  } else {
    pool().run(job);
  }
}

}  // namespace deepinfer
