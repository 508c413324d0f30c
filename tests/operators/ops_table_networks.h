// Cases of the table: products of stacks of matrices, losses, operators of networks. Part of ops_table.h.
#pragma once

#include "ops_table.h"

namespace sluice::testing {

inline void add_product_cases(std::vector<OperatorCase>& list) {
  const auto product = [&](std::string name, Dims a, Dims b, bool ta = false, bool tb = false) {
    list.push_back({name, {a, b}, [ta, tb](const Arrays& x) { return matmul(x[0], x[1], ta, tb); }});
  };
  product("batch_matmul", {2, 3, 4}, {2, 4, 5});
  product("batch_matmul, a transposed", {2, 4, 3}, {2, 4, 5}, true);
  product("batch_matmul, b transposed", {2, 3, 4}, {2, 5, 4}, false, true);
  product("batch_matmul, both transposed", {2, 4, 3}, {2, 5, 4}, true, true);
  product("batch_matmul, broadcast", {3, 1, 2, 4}, {2, 4, 3});
  product("batch_matmul of a matrix and a stack", {3, 4}, {2, 2, 4, 5});
  product("batch_matmul of a stack and a matrix", {2, 3, 4}, {4, 5});
  product("batch_matmul of a stack and a transposed matrix", {2, 3, 4}, {5, 4}, false, true);
  product("batch_matmul of a transposed stack and a matrix", {2, 4, 3}, {4, 5}, true);
  product("batch_matmul of rank 8", {1, 2, 1, 1, 2, 1, 2, 3}, {2, 1, 1, 1, 2, 1, 3, 2});
  product("matmul of vectors", {6}, {6});
  product("matmul of a vector and a matrix", {4}, {4, 3});
  product("matmul of a matrix and a vector", {3, 4}, {4});
  product("matmul of a vector and a stack", {4}, {2, 4, 3});
  product("matmul of a stack and a vector", {2, 3, 4}, {4});
  list.push_back({"batch_matmul of views", {{4, 3, 2}, {5, 8, 2}}, [](const Arrays& x) {
                    return matmul(x[0].permute({2, 1, 0}), x[1].permute({2, 1, 0})(all, slice(0, 8, 2), reversed()));
                  }});
  list.push_back({"batch_matmul of broadcast views", {{3, 4}, {4, 5}}, [](const Arrays& x) {
                    return matmul(x[0].broadcast_to({2, 3, 4}), x[1].broadcast_to({2, 4, 5}));
                  }});
  list.push_back({"dot", {{5}, {5}}, [](const Arrays& x) { return square(dot(x[0], x[1])); }});
  list.push_back({"outer", {{3}, {4}}, [](const Arrays& x) { return square(outer(x[0], x[1])); }});
  const auto sums = [&](std::string text, std::vector<Dims> shapes) {
    list.push_back({"einsum " + text, std::move(shapes), [text](const Arrays& x) { return einsum(text, x); }});
  };
  sums("bij,bjk->bik", {{2, 3, 4}, {2, 4, 5}});
  sums("bhqd,bkhd->bhqk", {{2, 2, 3, 4}, {2, 5, 2, 4}});
  sums("i,j->ij", {{3}, {4}});
  sums("ij->ji", {{3, 4}});
  sums("ij->j", {{3, 4}});
  sums("ii->i", {{4, 4}});
  sums("ij,jk,kl->il", {{2, 3}, {3, 4}, {4, 2}});
  sums("...ij,...jk->...ik", {{2, 1, 3, 4}, {3, 4, 2}});
  sums("ij,ij", {{3, 4}, {3, 4}});
  sums("ij,j->i", {{3, 4}, {1}});
}

inline void add_network_cases(std::vector<OperatorCase>& list) { add_product_cases(list); }

}  // namespace sluice::testing
