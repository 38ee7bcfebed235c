! attention: Fortran calls libringattn, forward and backward, on the ranks of a communicator, and
! compares with the definition. Arrays (D, H, rows) of Fortran are (rows, H, D) of C.
!
!     mpifort attention.f90 $(pkg-config --libs ringattn_mpi) -o attention
module ring_attention
    use, intrinsic :: iso_c_binding
    implicit none
    integer(c_int), parameter :: RA_OK = 0, RA_FLOAT32 = 0, RA_STRIPED = 1
    integer(c_int), parameter :: RA_QUERY_SIDE = 0, RA_KEY_SIDE = 1

    type, bind(c) :: ra_tensor
        type(c_ptr) :: data = c_null_ptr
        integer(c_int) :: type = RA_FLOAT32
        integer(c_int64_t) :: batch = 0, row = 0, head = 0
    end type

    type, bind(c) :: ra_arrays
        integer(c_size_t) :: size = 0
        type(ra_tensor) :: q, k, v, mask, o, lse, d_out, dq, dk, dv
        type(ra_tensor) :: d_lse, sink, d_sink, slopes, largest
    end type

    ! Room for a struct ra_config and a struct ra_link, which stay the library's.
    type, bind(c) :: ra_room
        integer(c_int64_t) :: words(64) = 0
    end type

    interface
        subroutine ra_config_init(config, size) bind(c)
            import
            type(ra_room), intent(out) :: config
            integer(c_size_t), value :: size
        end subroutine
        integer(c_int) function ra_config_set(config, field, value, error) bind(c)
            import
            type(ra_room), intent(inout) :: config
            character(kind=c_char), intent(in) :: field(*)
            real(c_double), value :: value
            character(kind=c_char), intent(inout) :: error(320)
        end function
        integer(c_int) function ra_mpi_link_f(link, comm, ring_size, timeout, error) bind(c)
            import
            type(ra_room), intent(out) :: link
            integer(c_int), value :: comm, ring_size
            real(c_double), value :: timeout
            character(kind=c_char), intent(inout) :: error(320)
        end function
        integer(c_int) function ra_plan_create(plan, config, link, error) bind(c)
            import
            type(c_ptr), intent(out) :: plan
            type(ra_room), intent(in) :: config, link
            character(kind=c_char), intent(inout) :: error(320)
        end function
        subroutine ra_plan_destroy(plan) bind(c)
            import
            type(c_ptr), value :: plan
        end subroutine
        integer(c_int64_t) function ra_plan_rows(plan, side) bind(c)
            import
            type(c_ptr), value :: plan
            integer(c_int), value :: side
        end function
        subroutine ra_plan_positions(plan, side, positions) bind(c)
            import
            type(c_ptr), value :: plan
            integer(c_int), value :: side
            integer(c_int64_t), intent(out) :: positions(*)
        end subroutine
        type(ra_tensor) function ra_tensor_bnhd(data, type, rows, heads, dim) bind(c)
            import
            type(c_ptr), value :: data
            integer(c_int), value :: type
            integer(c_int64_t), value :: rows, heads, dim
        end function
        type(ra_tensor) function ra_tensor_bhn(data, rows, heads) bind(c)
            import
            type(c_ptr), value :: data
            integer(c_int64_t), value :: rows, heads
        end function
        integer(c_int) function ra_forward(plan, arrays) bind(c)
            import
            type(c_ptr), value :: plan
            type(ra_arrays), intent(in) :: arrays
        end function
        integer(c_int) function ra_backward(plan, arrays) bind(c)
            import
            type(c_ptr), value :: plan
            type(ra_arrays), intent(in) :: arrays
        end function
    end interface
end module

program attention
    use ring_attention
    use mpi_f08
    implicit none
    integer(c_int64_t), parameter :: D = 8, H = 2, N = 37
    real(c_float), dimension(D, H, N) :: q, k, v, d_out
    real(c_double), dimension(D, H, N) :: o = 0, dq = 0, dk = 0, dv = 0
    real(c_float), dimension(:, :, :), allocatable, target :: my_q, my_k, my_v, my_d_out
    real(c_float), dimension(:, :, :), allocatable, target :: my_o, my_dq, my_dk, my_dv
    real(c_float), allocatable, target :: my_lse(:, :)
    integer(c_int64_t), allocatable :: rows(:), keys(:)
    character(kind=c_char) :: error(320) = c_null_char
    type(ra_room) :: config, link
    type(ra_arrays) :: arrays
    type(c_ptr) :: plan

    call MPI_Init()
    call random_init(repeatable=.true., image_distinct=.false.)
    call random_number(q)
    call random_number(k)
    call random_number(v)
    call random_number(d_out)
    call define()

    call ra_config_init(config, c_sizeof(config))
    call set("queries", real(N, c_double))
    call set("heads", real(H, c_double))
    call set("dim", real(D, c_double))
    call set("causal", 1d0)
    call set("layout", real(RA_STRIPED, c_double))
    call check(ra_mpi_link_f(link, MPI_COMM_WORLD%MPI_VAL, 0, 600d0, error), "link")
    call check(ra_plan_create(plan, config, link, error), "plan")

    ! This rank's rows of the whole: C counts from 0.
    allocate (rows(ra_plan_rows(plan, RA_QUERY_SIDE)), keys(ra_plan_rows(plan, RA_KEY_SIDE)))
    call ra_plan_positions(plan, RA_QUERY_SIDE, rows)
    call ra_plan_positions(plan, RA_KEY_SIDE, keys)
    rows = rows + 1
    keys = keys + 1
    my_q = q(:, :, rows)
    my_d_out = d_out(:, :, rows)
    my_k = k(:, :, keys)
    my_v = v(:, :, keys)
    allocate (my_o, my_dq, mold=my_q)
    allocate (my_dk, my_dv, mold=my_k)
    allocate (my_lse(size(rows), H))

    arrays%size = c_sizeof(arrays)
    arrays%q = tensor(my_q)
    arrays%k = tensor(my_k)
    arrays%v = tensor(my_v)
    arrays%o = tensor(my_o)
    arrays%lse = ra_tensor_bhn(c_loc(my_lse), size(rows, kind=c_int64_t), H)
    arrays%d_out = tensor(my_d_out)
    arrays%dq = tensor(my_dq)
    arrays%dk = tensor(my_dk)
    arrays%dv = tensor(my_dv)
    call check(ra_forward(plan, arrays), "forward")
    call check(ra_backward(plan, arrays), "backward")
    call ra_plan_destroy(plan)

    ! NaN is near nothing.
    if (.not. all([abs(my_o - o(:, :, rows)), abs(my_dq - dq(:, :, rows)), &
                   abs(my_dk - dk(:, :, keys)), abs(my_dv - dv(:, :, keys))] <= 1d-5)) &
        error stop "o or a gradient is not what the definition says"
    print '(i0, a, i0, a)', size(rows), " of ", N, " rows, within 1e-5 of the definition"
    call MPI_Finalize()

contains
    subroutine set(field, value)
        character(*), intent(in) :: field
        real(c_double), intent(in) :: value
        call check(ra_config_set(config, field//c_null_char, value, error), field)
    end subroutine

    type(ra_tensor) function tensor(array)
        real(c_float), target, intent(in) :: array(:, :, :)
        tensor = ra_tensor_bnhd(c_loc(array), RA_FLOAT32, size(array, 3, c_int64_t), H, D)
    end function

    subroutine check(status, what)
        integer(c_int), intent(in) :: status
        character(*), intent(in) :: what
        if (status == RA_OK) return
        print *, what, ": ", error(:findloc(error, c_null_char, 1) - 1)
        error stop
    end subroutine

    ! The definition, causal, in double: o, then the gradients for d_out.
    subroutine define()
        real(c_double) :: p(N), ds(N), scale
        integer :: i, j, g
        scale = 1/sqrt(real(D, c_double))
        do g = 1, int(H)
            do i = 1, int(N)
                p = 0
                do j = 1, i
                    p(j) = exp(scale*dot_product(real(q(:, g, i), c_double), k(:, g, j)))
                end do
                p = p/sum(p)
                ds = matmul(real(d_out(:, g, i), c_double), v(:, g, :))
                ds = scale*p*(ds - dot_product(p, ds))
                o(:, g, i) = matmul(real(v(:, g, :), c_double), p)
                dq(:, g, i) = matmul(real(k(:, g, :), c_double), ds)
                do j = 1, i
                    dk(:, g, j) = dk(:, g, j) + ds(j)*q(:, g, i)
                    dv(:, g, j) = dv(:, g, j) + p(j)*d_out(:, g, i)
                end do
            end do
        end do
    end subroutine
end program
