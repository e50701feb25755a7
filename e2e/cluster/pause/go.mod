module longboat/pause

go 1.26.0
