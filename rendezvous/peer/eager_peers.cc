// SPDX-License-Identifier: Apache-2.0
// Lookup of links.
#include "rendezvous/peer/eager_peers.h"

#include <utility>

namespace ferry {

EagerPeers::~EagerPeers() {
  for (std::atomic<Chunk*>& chunk : chunks_) {
    const std::unique_ptr<Chunk> owned(chunk.load());
    if (owned == nullptr) continue;
    for (std::atomic<Node*>& node : *owned) delete node.load();
  }
}

// Worker N is node N.
EagerPeers::Node* EagerPeers::FindNode(int64_t node_id) const {
  const auto number = static_cast<uint64_t>(node_id);
  if (number >= kChunk * kChunk) return nullptr;
  const Chunk* const chunk = chunks_[number / kChunk].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : (*chunk)[number % kChunk].load(std::memory_order_acquire);
}

EagerPeers::Node* EagerPeers::GetNode(int64_t node_id) {
  if (Node* const found = FindNode(node_id); found != nullptr) return found;
  const auto number = static_cast<uint64_t>(node_id);
  if (number >= kChunk * kChunk) return nullptr;
  auto node = std::make_unique<Node>();
  auto made = std::make_unique<Chunk>();
  SpinLockHolder lock(&mu_);
  std::atomic<Chunk*>& chunk = chunks_[number / kChunk];
  if (chunk.load() == nullptr) chunk.store(made.release(), std::memory_order_release);
  std::atomic<Node*>& slot = (*chunk.load())[number % kChunk];
  if (slot.load() == nullptr) slot.store(node.release(), std::memory_order_release);
  return slot.load();
}

EagerPeers::Link* EagerPeers::GetLink(const PeerId& peer) {
  Node* const node = GetNode(peer.node_id);
  if (node == nullptr) return nullptr;
  auto made = std::make_unique<Link>(context_, limits_, peer, run_after_);
  SpinLockHolder lock(&node->mu);
  for (const std::unique_ptr<Link>& each : node->links) {
    if (each->peer == peer) return each.get();
  }
  if (node->links.size() >= kMaxLinks) return nullptr;
  node->links.push_back(std::move(made));
  return node->links.back().get();
}

EagerSendLink* EagerPeers::SendLinkFor(const RendezvousKey& key) {
  const Node* const node = FindNode(key.dst_worker());
  return node == nullptr ? nullptr : node->connected.load(std::memory_order_acquire);
}

EagerRecvLink* EagerPeers::RecvLinkFor(const RendezvousKey& key) {
  const int64_t number = key.src_worker();
  const Node* const node = FindNode(number);
  if (node != nullptr) {
    EagerInbox* const inbox = node->inbox.load(std::memory_order_acquire);
    if (inbox != nullptr && inbox->producer().incarnation == key.src_incarnation()) return inbox;
  }
  if (number < 0 || number > INT32_MAX) return nullptr;
  return InboxOf({static_cast<int32_t>(number), key.src_incarnation()});
}

EagerInbox* EagerPeers::InboxOf(const PeerId& producer) {
  Link* const link = GetLink(producer);
  if (link == nullptr) return nullptr;
  FindNode(producer.node_id)->inbox.store(&link->inbox, std::memory_order_release);
  return &link->inbox;
}

EagerOutbox* EagerPeers::OutboxOf(const PeerId& consumer) {
  Link* const link = GetLink(consumer);
  return link == nullptr ? nullptr : &link->outbox;
}

void EagerPeers::SetConnected(const PeerId& consumer, const ControlChannel& channel,
                              EagerOutbox* outbox) {
  Node* const node = FindNode(consumer.node_id);
  if (node == nullptr) return;
  SpinLockHolder lock(&node->mu);
  node->channel = &channel;
  node->connected.store(outbox, std::memory_order_release);
}

EagerOutbox* EagerPeers::OnDisconnected(const PeerId& consumer, const ControlChannel& channel) {
  Node* const node = FindNode(consumer.node_id);
  if (node == nullptr) return nullptr;
  SpinLockHolder lock(&node->mu);
  if (node->channel != &channel) return nullptr;
  node->channel = nullptr;
  EagerOutbox* other = nullptr;
  // The latest first: HELLOs of an incarnation that has ended may arrive after its successor's.
  for (auto each = node->links.rbegin(); each != node->links.rend(); ++each) {
    node->channel = (*each)->outbox.channel();
    if (node->channel == nullptr) continue;
    other = &(*each)->outbox;
    break;
  }
  node->connected.store(other, std::memory_order_release);
  return other;
}

void EagerPeers::ForEachLink(absl::FunctionRef<void(Link&)> visit) const {
  for (const std::atomic<Chunk*>& chunk : chunks_) {
    const Chunk* const nodes = chunk.load(std::memory_order_acquire);
    if (nodes == nullptr) continue;
    for (const std::atomic<Node*>& slot : *nodes) {
      Node* const node = slot.load(std::memory_order_acquire);
      if (node == nullptr) continue;
      std::vector<Link*> links;
      {
        SpinLockHolder lock(&node->mu);
        for (const std::unique_ptr<Link>& each : node->links) links.push_back(each.get());
      }
      for (Link* const link : links) visit(*link);
    }
  }
}

void EagerPeers::BeforeClose() {
  ForEachLink([](Link& link) { link.inbox.BeforeClose(); });
}

void EagerPeers::ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const {
  ForEachLink([&](Link& link) { link.outbox.ForEachTransfer(min_age, visit); });
}

TableSizes EagerPeers::InnerTableSizes() const {
  TableSizes sizes;
  ForEachLink([&sizes](Link& link) {
    for (const auto& [name, size] : link.outbox.InnerTableSizes()) sizes[name] += size;
    for (const auto& [name, size] : link.inbox.InnerTableSizes()) sizes[name] += size;
  });
  return sizes;
}

}  // namespace ferry
