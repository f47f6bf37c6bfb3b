// Memory a thread keeps between calls.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace deepinfer {

// Grows to the largest request; content does not survive a request.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { std::free(data_); }

  template <class T>
  T* get(std::size_t count) {
    constexpr std::size_t kAlignment = 64;
    const std::size_t bytes = (count * sizeof(T) + kAlignment) / kAlignment * kAlignment;
    if (bytes > bytes_) {
      std::free(data_);
      bytes_ = 0;
      data_ = std::aligned_alloc(kAlignment, bytes);
      if (data_ == nullptr) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace deepinfer
