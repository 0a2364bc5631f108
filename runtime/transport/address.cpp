#include "runtime/transport/address.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "runtime/transport/codec.hpp"

namespace troupe::transport {
namespace {

constexpr uint64_t blob_magic = 0x33'50'45'55'50'55'4f'52;  // "ROUPUEP3", version in the last digit

}  // namespace

std::string endpoint_address::encode() const {
  return blob_writer().number(blob_magic).number(identity).number(host).text(messages).number(shares).finish();
}

result<endpoint_address> endpoint_address::decode(std::string_view bytes) {
  blob_reader in(bytes);
  endpoint_address a;
  const bool magic = in.number() == blob_magic;
  a.identity = in.number();
  a.host = in.number();
  a.messages = in.text();
  a.shares = in.number() != 0;
  if (!magic || !in.complete() || a.messages.empty())
    return fail(errc::corrupt, "an address blob of {} B is truncated or of another version", bytes.size());
  return a;
}

uint64_t host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat st {};
  if (stat("/proc/self/ns/pid", &st) != 0) st.st_ino = static_cast<ino_t>(getpid());
  return blob_hash(fmt::format("{} {}", boot, static_cast<uint64_t>(st.st_ino)));
}

}  // namespace troupe::transport
