#include "runtime/transport/ucx_space.hpp"

#include "runtime/transport/ucx_core.hpp"

namespace troupe::transport {
namespace {

class ucx_block final : public shared_block {
 public:
  explicit ucx_block(std::unique_ptr<ucx::memory> memory) : memory_(std::move(memory)) {}
  std::span<std::byte> bytes() const override { return memory_->bytes(); }
  const std::string& key() const override { return memory_->rkey(); }

 private:
  const std::unique_ptr<ucx::memory> memory_;
};

class ucx_mapping final : public shared_mapping {
 public:
  explicit ucx_mapping(std::unique_ptr<ucx::mapping> mapping) : mapping_(std::move(mapping)) {}
  std::byte* data() const override { return mapping_->data(); }
  size_t size() const override { return mapping_->size(); }

 private:
  const std::unique_ptr<ucx::mapping> mapping_;
};

class ucx_space final : public shared_space {
 public:
  explicit ucx_space(std::unique_ptr<ucx::node> node) : node_(std::move(node)) {}
  const std::string& address() const override { return node_->address(); }
  result<std::unique_ptr<shared_block>> allocate(size_t bytes) override {
    TROUPE_TRY(auto memory, ucx::memory::allocate(*node_, bytes));
    return std::make_unique<ucx_block>(std::move(memory));
  }
  result<std::unique_ptr<shared_mapping>> map(const std::string& peer_address, const std::string& key,
                                              uint64_t base) override {
    TROUPE_TRY(auto mapping, ucx::mapping::open(*node_, peer_address, key, base));
    return std::make_unique<ucx_mapping>(std::move(mapping));
  }

 private:
  const std::unique_ptr<ucx::node> node_;
};

}  // namespace

result<std::unique_ptr<shared_space>> open_ucx_space() {
  TROUPE_TRY(auto node, ucx::node::shared_memory());
  return std::make_unique<ucx_space>(std::move(node));
}

}  // namespace troupe::transport
