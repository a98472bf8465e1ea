// Objects that are made and dropped all the time, kept for the memory that they hold. Large ones are let go, so that
// what many small ones once held for a while does not add up.
#pragma once

#include <memory>
#include <vector>

namespace soapstone {

// T has clear(), which keeps memory, and is_large().
template <typename T>
class Spares {
 public:
  std::unique_ptr<T> take() {
    if (spare_.empty()) return std::make_unique<T>();
    auto object = std::move(spare_.back());
    spare_.pop_back();
    object->clear();
    return object;
  }
  void give(std::unique_ptr<T> object) {
    if (object && !object->is_large()) spare_.push_back(std::move(object));
  }

 private:
  std::vector<std::unique_ptr<T>> spare_;
};

}  // namespace soapstone
