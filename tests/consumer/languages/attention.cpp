// attention: C++ includes the header of C. A class frees the plan and throws its errors.
//
//     g++ attention.cpp $(pkg-config --cflags --libs ringattn) -o attention
#include <ring_attention.h>
#include <cmath>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <vector>

class Plan
{
  public:
    // With a link the plan of one rank, which is destroyed by all ranks together.
    explicit Plan(const ra_config &config, const ra_link *link = nullptr)
    {
        char error[RA_ERROR_SIZE];
        ra_plan *made;
        if (ra_plan_create(&made, &config, link, error) != RA_OK)
            throw std::runtime_error(error);
        plan.reset(made);
    }
    void forward(const ra_arrays &arrays)
    {
        check(ra_forward(plan.get(), &arrays));
    }
    void backward(const ra_arrays &arrays)
    {
        check(ra_backward(plan.get(), &arrays));
    }
    int64_t rows(ra_side side) const
    {
        return ra_plan_rows(plan.get(), side);
    }

  private:
    struct Destroy {
        void operator()(ra_plan *plan) const
        {
            ra_plan_destroy(plan);
        }
    };
    void check(ra_status status) const
    {
        if (status != RA_OK)
            throw std::runtime_error(ra_plan_error(plan.get()));
    }
    std::unique_ptr<ra_plan, Destroy> plan;
};

static const int N = 37, H = 2, D = 8;

// The largest difference of o from the definition, causal, in double. NaN stays NaN.
static double worst(const std::vector<float> &q, const std::vector<float> &k,
                    const std::vector<float> &v, const std::vector<float> &o)
{
    double most = 0;
    for (int i = 0; i < N; i++)
        for (int h = 0; h < H; h++) {
            double sum = 0, out[D] = {};
            for (int j = 0; j <= i; j++) {
                double score = 0;
                for (int c = 0; c < D; c++)
                    score += double(q[(i * H + h) * D + c]) * double(k[(j * H + h) * D + c]);
                double p = std::exp(score / std::sqrt(double(D)));
                sum += p;
                for (int c = 0; c < D; c++)
                    out[c] += p * double(v[(j * H + h) * D + c]);
            }
            for (int c = 0; c < D; c++) {
                double off = std::abs(double(o[(i * H + h) * D + c]) - out[c] / sum);
                most = off <= most ? most : off;
            }
        }
    return most;
}

int main()
try {
    std::vector<float> q(N * H * D), k(q), v(q), o(q), lse(N * H);
    for (size_t e = 0; e < q.size(); e++) {
        q[e] = std::sin(float(e));
        k[e] = std::cos(2 * float(e));
        v[e] = std::sin(3 * float(e));
    }

    ra_config config = RA_CONFIG_INIT;
    config.queries = N;
    config.heads = H;
    config.dim = D;
    config.causal = true;
    Plan plan(config);

    ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = ra_tensor_bnhd(q.data(), RA_FLOAT32, N, H, D);
    arrays.k = ra_tensor_bnhd(k.data(), RA_FLOAT32, N, H, D);
    arrays.v = ra_tensor_bnhd(v.data(), RA_FLOAT32, N, H, D);
    arrays.o = ra_tensor_bnhd(o.data(), RA_FLOAT32, N, H, D);
    arrays.lse = ra_tensor_bhn(lse.data(), N, H);
    plan.forward(arrays);
    double off = worst(q, k, v, o);
    if (!(off <= 1e-5))
        throw std::runtime_error("o is not what the definition says");
    std::cout << plan.rows(RA_QUERY_SIDE) << " rows, within 1e-5 of the definition\n";

    // An error is an exception with the library's text.
    config.heads = 0;
    try {
        Plan none(config);
    } catch (const std::runtime_error &error) {
        std::cout << "refused, as it should be: " << error.what() << '\n';
        return 0;
    }
    throw std::runtime_error("0 heads were not refused");
} catch (const std::exception &error) {
    std::cerr << "attention: " << error.what() << '\n';
    return 1;
}
