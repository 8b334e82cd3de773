// Memory of a step's own.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace hr {

// Memory aligned to cache lines, kept from step to step; only ever grows.
template <class T>
class Buffer {
 public:
  ~Buffer() { std::free(data_); }
  T* sized(int64_t count) {
    if (count > count_) {
      std::free(data_);
      data_ = static_cast<T*>(std::aligned_alloc(64, (size_t(count) * sizeof(T) + 4095) / 4096 * 4096));
      count_ = data_ ? count : 0;
      if (!data_) throw std::bad_alloc();
    }
    return data_;
  }
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace hr
