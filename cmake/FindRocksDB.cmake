# Finds RocksDB (the distributions' package file asks for libraries that their development package does not pull in).
# Defines RocksDB::rocksdb and RocksDB_VERSION.
find_path(RocksDB_INCLUDE_DIR rocksdb/db.h)
find_library(RocksDB_LIBRARY rocksdb)
if(RocksDB_INCLUDE_DIR)
  file(STRINGS ${RocksDB_INCLUDE_DIR}/rocksdb/version.h _rocksdb_lines REGEX "#define ROCKSDB_(MAJOR|MINOR|PATCH) [0-9]+")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" RocksDB_VERSION "${_rocksdb_lines}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(RocksDB REQUIRED_VARS RocksDB_INCLUDE_DIR RocksDB_LIBRARY VERSION_VAR RocksDB_VERSION)
if(RocksDB_FOUND AND NOT TARGET RocksDB::rocksdb)
  add_library(RocksDB::rocksdb UNKNOWN IMPORTED)
  set_target_properties(RocksDB::rocksdb PROPERTIES IMPORTED_LOCATION ${RocksDB_LIBRARY}
                                                    INTERFACE_INCLUDE_DIRECTORIES ${RocksDB_INCLUDE_DIR})
endif()
