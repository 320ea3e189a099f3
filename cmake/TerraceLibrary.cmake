# Terrace::terrace (shared, what users link) and terrace_internal (static, the same objects with their internal
# headers: tests and benchmarks of parts).
get_property(modules GLOBAL PROPERTY TERRACE_MODULES)
get_property(depends GLOBAL PROPERTY TERRACE_MODULE_DEPENDS)
list(REMOVE_DUPLICATES depends)
set(objects "")
foreach(module IN LISTS modules)
  list(APPEND objects $<TARGET_OBJECTS:${module}>)
endforeach()

file(GLOB TERRACE_PUBLIC_HEADERS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/terrace/*.h)

add_library(terrace SHARED ${objects})
add_library(Terrace::terrace ALIAS terrace)
target_sources(terrace PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${TERRACE_PUBLIC_HEADERS})
target_compile_features(terrace PUBLIC cxx_std_20)
# A shared library's target would be named in the exported package, and a consumer would have to find it: its
# file is linked instead. The objects have its include folders from terrace_module.
foreach(depend IN LISTS depends)
  get_target_property(type ${depend} TYPE)
  if(type STREQUAL "SHARED_LIBRARY")
    set(depend $<TARGET_FILE:${depend}>)
  endif()
  target_link_libraries(terrace PRIVATE ${depend})
endforeach()
target_link_libraries(terrace PRIVATE Threads::Threads)
# While the version is 0.x, a minor version may change the binary interface: it is part of the soname.
set_target_properties(terrace PROPERTIES VERSION ${PROJECT_VERSION}
                                         SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
                                         LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/terrace.map
                                         VERIFY_INTERFACE_HEADER_SETS ON)
target_link_options(terrace PRIVATE -Wl,--exclude-libs,ALL
                                    -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/terrace.map)
if(NOT TERRACE_SANITIZER)  # a sanitizer's run-time may come with the program
  target_link_options(terrace PRIVATE -Wl,--no-undefined)
endif()

add_library(terrace_internal STATIC ${objects})
target_include_directories(terrace_internal PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_include_directories(terrace_internal SYSTEM PUBLIC ${PROJECT_BINARY_DIR}/generated)
target_link_libraries(terrace_internal PUBLIC ${depends} Threads::Threads)

# Every internal header compiles alone too (all_verify_interface_header_sets).
file(GLOB_RECURSE TERRACE_INTERNAL_HEADERS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lib/*.h
                                                             ${PROJECT_SOURCE_DIR}/backends/*.h
                                                             ${PROJECT_SOURCE_DIR}/kernels/*.h)
if(NOT TERRACE_HAVE_CUDA)
  list(FILTER TERRACE_INTERNAL_HEADERS EXCLUDE REGEX "/kernels/cuda/(cuda_|paged_copy_)")
endif()
add_library(terrace_internal_headers INTERFACE)
target_sources(terrace_internal_headers INTERFACE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
                                                  FILES ${TERRACE_INTERNAL_HEADERS})
target_link_libraries(terrace_internal_headers INTERFACE terrace_internal)
set_target_properties(terrace_internal_headers PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
