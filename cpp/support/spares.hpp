// Objects that are made and dropped all the time, kept for the memory that they hold. Of large ones only a few are
// kept, so that what many small ones once held for a while does not add up.
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
    num_large_ -= object->is_large();
    object->clear();
    return object;
  }
  void give(std::unique_ptr<T> object) {
    if (!object || (object->is_large() && num_large_ == most_large)) return;
    num_large_ += object->is_large();
    spare_.push_back(std::move(object));
  }

 private:
  static constexpr int most_large = 16;

  std::vector<std::unique_ptr<T>> spare_;
  int num_large_ = 0;
};

}  // namespace soapstone
