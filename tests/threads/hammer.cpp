// Uses the pool of threads as kernels do, and harder, for the thread sanitizer to watch.
//
//   hammer callers|sleepers|failures|forks|unguarded
//
// Parts write to plain memory that no other part writes, and the caller reads it afterwards: what
// orders the two is the pool alone. `unguarded` breaks that, and must be reported.
#include "../../csrc/kernels/thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using deepinfer::run_parts;

constexpr int kCallers = 4, kMostThreads = 6;

void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "hammer: %s\n", what);
  std::exit(1);
}

// One call whose parts each write one number; the memory comes from the last call.
void call_once(std::vector<long>& memory, int num_threads, long num_parts, long base) {
  memory.resize(static_cast<std::size_t>(num_parts));
  run_parts(num_threads, num_parts,
            [&](std::int64_t part) { memory[static_cast<std::size_t>(part)] = base + part; });
  for (long part = 0; part < num_parts; ++part) {
    require(memory[static_cast<std::size_t>(part)] == base + part, "a part was not computed");
  }
}

template <class Work>
void from_several_callers(Work work) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) callers.emplace_back(work, caller);
  for (std::thread& caller : callers) caller.join();
}

// The number of threads grows and shrinks from call to call.
void callers() {
  from_several_callers([](int caller) {
    std::vector<long> memory;
    for (int i = 0; i < 3000; ++i) {
      call_once(memory, 1 + (i + caller) % kMostThreads, 1 + 7 * i % 40, 1000L * i + caller);
    }
  });
}

// Pauses are longer than workers spin: they sleep, and are woken.
void sleepers() {
  from_several_callers([](int caller) {
    std::vector<long> memory;
    for (int i = 0; i < 100; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1 + (caller + i) % 4));
      call_once(memory, kMostThreads, 24, 1000L * i + caller);
    }
  });
}

// One or all parts throw: the caller is told, and the next call is as good as any.
void failures() {
  from_several_callers([](int caller) {
    std::vector<long> memory;
    for (int i = 0; i < 500; ++i) {
      bool failed = false;
      try {
        run_parts(kMostThreads, 12, [&](std::int64_t part) {
          if (part == i % 13 || i % 50 == 0) throw std::runtime_error(std::to_string(caller));
        });
      } catch (const std::runtime_error& error) {
        failed = error.what() == std::to_string(caller);
      }
      require(failed == (i % 13 != 12 || i % 50 == 0), "an exception was lost, or another's came");
      call_once(memory, kMostThreads, 12, i);
    }
  });
}

// A child has no worker of its parent's.
void forks() {
  std::vector<long> memory;
  for (int i = 0; i < 20; ++i) {
    call_once(memory, 3, 30, i);
    const pid_t child = fork();
    if (child == 0) {
      call_once(memory, 3, 30, 1000 + i);
      _exit(0);
    }
    int status = 1;
    require(waitpid(child, &status, 0) == child && status == 0, "a child failed");
  }
}

void unguarded() {
  long total = 0;
  for (int i = 0; i < 100; ++i) run_parts(4, 64, [&](std::int64_t part) { total += part; });
  std::printf("%ld\n", total);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count == 2 ? arguments[1] : "";
  if (what == "callers") {
    callers();
  } else if (what == "sleepers") {
    sleepers();
  } else if (what == "failures") {
    failures();
  } else if (what == "forks") {
    forks();
  } else if (what == "unguarded") {
    unguarded();
  } else {
    std::fprintf(stderr, "hammer callers|sleepers|failures|forks|unguarded\n");
    return 2;
  }
  return 0;
}
