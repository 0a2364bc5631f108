#include "runtime/transport/ucx_wire.hpp"

#include <array>
#include <cstring>
#include <deque>

#include "runtime/base/check.hpp"
#include "runtime/transport/ucx_core.hpp"

namespace troupe::transport {
namespace {

constexpr unsigned message_id = 1;

/// What a link's frames on their way report to. Those of a buried connection outlive the link.
struct traffic {
  uint64_t posted = 0, sent = 0;
  std::deque<bool> left;     // of the frames after `sent`
  bool got_through = false;  // one was sent, so the connection is made
  void leave(uint64_t number) {
    left[number - sent - 1] = true;
    for (; !left.empty() && left.front(); ++sent) left.pop_front();
  }
};

/// Everything that UCX may still read of a frame.
struct request {
  std::array<std::byte, max_frame_header> header;
  std::shared_ptr<const void> keep;
  std::shared_ptr<traffic> reports;
  uint64_t number = 0;
};

class ucx_link final : public link {
 public:
  ~ucx_link() override {
    if (state_->got_through) guard_->settle();
    guard_.reset();
  }
  static result<std::unique_ptr<link>> make(ucx::node& from, const std::string& address) {
    std::unique_ptr<ucx_link> l(new ucx_link);
    TROUPE_TRY(l->guard_, ucx::guard::connect(from, address, [raw = l.get()](ucs_status_t) { raw->lost_ = true; }));
    return l;
  }
  uint64_t post(std::span<const std::byte> header, std::span<const std::byte> payload,
                std::shared_ptr<const void> keep) override {
    TROUPE_CHECK(header.size() <= max_frame_header, "a frame header of {} B is too long", header.size());
    const uint64_t number = ++state_->posted;
    state_->left.push_back(false);
    if (lost_) return number;
    auto r = std::make_unique<request>();
    std::memcpy(r->header.data(), header.data(), header.size());
    r->keep = std::move(keep);
    r->reports = state_;
    r->number = number;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
    params.cb.send = &ucx_link::left;
    params.user_data = r.get();
    void* sending = ucp_am_send_nbx(guard_->endpoint(), message_id, r->header.data(), header.size(), payload.data(),
                                    payload.size(), &params);
    if (UCS_PTR_IS_ERR(sending)) {
      lost_ = true;
    } else if (sending) {
      (void)r.release();  // `left` owns it
    } else {
      state_->got_through = true;
      state_->leave(number);
    }
    return number;
  }
  uint64_t sent() const override { return state_->sent; }
  bool lost() const override { return lost_; }

 private:
  ucx_link() = default;
  static void left(void* sending, ucs_status_t status, void* user) {
    // A failure also reaches the guard's error callback, which is where it is acted on.
    const std::unique_ptr<request> r(static_cast<request*>(user));
    r->reports->got_through |= status == UCS_OK;
    r->reports->leave(r->number);
    ucp_request_free(sending);
  }
  std::unique_ptr<ucx::guard> guard_;
  const std::shared_ptr<traffic> state_ = std::make_shared<traffic>();
  bool lost_ = false;
};

class ucx_wire final : public wire {
 public:
  result<void> open(const std::string& interface) {
    TROUPE_TRY(in_, ucx::node::messages(interface));
    TROUPE_TRY(out_, ucx::node::messages(interface));
    TROUPE_TRY(sleeper_, ucx::sleeper::make(*in_, *out_));
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = message_id;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = &ucx_wire::receive;
    handler.arg = this;
    if (const auto s = ucp_worker_set_am_recv_handler(in_->worker(), &handler); s != UCS_OK)
      return ucx::ucx_failure("ucp_worker_set_am_recv_handler", s);
    return {};
  }
  const std::string& address() const override { return in_->address(); }
  void on_frame(receiver to) override { receiver_ = std::move(to); }
  result<std::unique_ptr<link>> connect(std::string_view address) override {
    return ucx_link::make(*out_, std::string(address));
  }
  unsigned progress() override { return in_->progress() + out_->progress(); }
  void sleep(nanoseconds limit) override { sleeper_->sleep(limit); }
  void signal() override { sleeper_->signal(); }

 private:
  static ucs_status_t receive(void* arg, const void* header, size_t header_length, void* data, size_t length,
                              const ucp_am_recv_param_t* param) {
    // Every message is sent eagerly; a rendezvous announcement is none of ours.
    const auto* self = static_cast<ucx_wire*>(arg);
    if (self->receiver_ && !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV))
      self->receiver_({static_cast<const std::byte*>(header), header_length},
                      {static_cast<const std::byte*>(data), length});
    return UCS_OK;
  }
  std::unique_ptr<ucx::node> in_, out_;  // receives; makes the connections and sends
  std::unique_ptr<ucx::sleeper> sleeper_;
  receiver receiver_;
};

}  // namespace

result<std::unique_ptr<wire>> open_ucx_wire(const std::string& interface) {
  auto made = std::make_unique<ucx_wire>();
  if (auto ok = made->open(interface); !ok) return fail(ok.error());
  return made;
}

}  // namespace troupe::transport
