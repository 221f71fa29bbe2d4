# What `cmake --install` and the wheel take. Components: devel (CMake package deltawire::deltawire), python (the
# wheel; the extension's own rule is in src/python), cli.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The C++ library: every folder's archive behind one name. Public headers only; src/ is not installed.
get_property(deltawire_libraries GLOBAL PROPERTY DELTAWIRE_LIBRARIES)
add_library(deltawire_package INTERFACE)
add_library(deltawire::deltawire ALIAS deltawire_package)
set_target_properties(deltawire_package PROPERTIES EXPORT_NAME deltawire)
target_compile_features(deltawire_package INTERFACE cxx_std_20)
target_include_directories(deltawire_package INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                       $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(deltawire_package INTERFACE ${deltawire_libraries})
install(TARGETS deltawire_package EXPORT deltawire)
install(DIRECTORY DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT devel)  # exists even without a header
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT devel FILES_MATCHING PATTERN "*.h")

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/deltawire)
install(EXPORT deltawire NAMESPACE deltawire:: DESTINATION ${package_folder} FILE deltawire-targets.cmake
        COMPONENT devel)
configure_package_config_file(cmake/deltawire-config.cmake.in deltawire-config.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(deltawire-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/deltawire-config.cmake ${PROJECT_BINARY_DIR}/deltawire-config-version.cmake
        DESTINATION ${package_folder} COMPONENT devel)

if(TARGET deltawire)
  if(SKBUILD)
    install(TARGETS deltawire RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
  else()
    install(TARGETS deltawire RUNTIME COMPONENT cli)
  endif()
endif()
