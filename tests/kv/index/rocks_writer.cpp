// Writes to a database until it is killed, telling after each batch that it was acknowledged.
//
//   rocks_writer DIR on|off      wal mode
#include <cstdio>
#include <string>

#include "kv/index/rocks_db.hpp"

int main(int argc, char** argv) {
  using namespace troupe::kv;
  if (argc != 3) return 2;
  const auto wal = std::string(argv[2]) == "on" ? wal_mode::on : wal_mode::off;
  auto database = open_rocks_db({.path = argv[1], .write_buffer_bytes = 1 << 20, .wal = wal});
  if (!database) {
    std::fprintf(stderr, "%s\n", database.error().message.c_str());
    return 1;
  }
  for (uint64_t n = 0;; ++n) {
    std::string key(8, '\0');
    for (int i = 0; i < 8; ++i) key[i] = static_cast<char>(n >> (56 - 8 * i));
    write_batch b;
    b.put(family::block, key, std::string(100, 'b'));
    b.put(family::extent, key, std::string(100, 'e'));
    if (!(*database)->write(b, sync_write::no)) return 1;
    std::printf("%llu\n", static_cast<unsigned long long>(n));
    std::fflush(stdout);
  }
}
