# rates: makes a table in C of chapters/img/12-rates.csv, so that programs have the rates wherever they run.
# awk -f src/scale/rates.awk chapters/img/12-rates.csv
BEGIN {
    FS = ","
    print "#include \"scale_machine.h\"\nconst struct scale_rate scale_rates[] = {"
}
/^#/ { next } # where and how this was measured
!head { head = FNR; next }
!(NF == 8 && $4 + 0 > 0 && $6 + 0 > 0 && $7 + 0 > 0 && $8 + 0 > 0) {
    printf "%s:%d: give machine,kernel,type,dim,mask,rows,forward,backward, and numbers above 0\n", FILENAME, FNR >"/dev/stderr"
    exit wrong = 1
}
{ printf "    {\"%s\", \"%s\", \"%s\", %s, \"%s\", %s, %s, %s},\n", $1, $2, $3, $4, $5, $6, $7, $8 }
END { if (!wrong) print "    {0}};" }
