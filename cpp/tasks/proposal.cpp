#include "tasks/proposal.hpp"

namespace soapstone {

Proposal::Proposal(TaskGraph& graph, const Changes& changes) : graph_(graph) {
  try {
    graph_.change(changes);
  } catch (...) {
    graph_.rollback();
    throw;
  }
}

Proposal::~Proposal() {
  if (open_) graph_.rollback();
}

void Proposal::commit() {
  graph_.commit();
  open_ = false;
}

}  // namespace soapstone
