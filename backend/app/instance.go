package app

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Instance is the right to use a data folder. One process has it; what a second one was asked to open, it hands to the first.
// The system takes the lock back when the process ends, however it ends.
type Instance struct {
	lock     *os.File
	listener net.Listener // nil where there are no locks
}

// ErrHandedOver says that another process uses the data folder and has been given the paths.
var ErrHandedOver = errors.New("another Colibri is running and was asked to open the files")

const (
	maxHandedBytes = 1 << 20         // of paths
	handOverWait   = 8 * time.Second // longer than a program takes to close
)

// Claim takes the data folder. If another process has it, that one is given the paths (full ones) and ErrHandedOver is returned. It must come
// before the conversations are opened: opening ends answers that were being written, and removes for good what was deleted.
func Claim(dir string, paths []string) (*Instance, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "in-use"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the data folder cannot be written to; check that you may write to %s: %w", dir, err)
	}
	socket := socketPath(dir)
	// A process that does not listen may be starting, or closing: then the folder will be free in a moment.
	for deadline := time.Now().Add(handOverWait); ; time.Sleep(20 * time.Millisecond) {
		locked := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if locked == nil {
			break
		}
		if !errors.Is(locked, syscall.EWOULDBLOCK) { // a file system without locks: better one instance too many than none
			return &Instance{lock: lock}, nil
		}
		handed := handOver(socket, paths)
		if handed == nil {
			return nil, errors.Join(ErrHandedOver, lock.Close())
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("another Colibri uses %s and does not answer; quit it, then try again: %w", dir, handed), lock.Close())
		}
	}
	_ = os.Remove(socket) // of a process that was killed
	i := &Instance{lock: lock}
	if i.listener, err = net.Listen("unix", socket); err != nil {
		return nil, errors.Join(fmt.Errorf("a second start could not be answered: %w", err), lock.Close())
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return i, nil
}

// socketPath lies in the data folder, or where that is too deep for a socket's name (104 bytes on macOS), in the folder for temporary files.
func socketPath(dir string) string {
	path := filepath.Join(dir, "instance.sock")
	if len(path) < 100 {
		return path
	}
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(os.TempDir(), "colibri-"+hex.EncodeToString(sum[:8])+".sock")
}

// handOver gives paths to the process that has the folder.
func handOver(socket string, paths []string) error {
	connection, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(handOverWait)); err != nil {
		return err
	}
	if err := json.NewEncoder(connection).Encode(paths); err != nil {
		return err
	}
	answer, err := bufio.NewReader(connection).ReadString('\n')
	if err != nil || answer != "ok\n" {
		return errors.Join(err, fmt.Errorf("it answered %q", strings.TrimSpace(answer)))
	}
	return nil
}

// Serve calls open with what later starts hand over, until Close. Any program of this user can send here: the paths are
// checked like dropped ones.
func (i *Instance) Serve(open func(paths []string)) {
	if i.listener == nil {
		return
	}
	for {
		connection, err := i.listener.Accept()
		if err != nil {
			return // closed
		}
		paths, err := receive(connection)
		if err == nil {
			open(paths)
		}
		_ = connection.Close()
	}
}

func receive(connection net.Conn) (paths []string, err error) {
	if err := connection.SetDeadline(time.Now().Add(handOverWait)); err != nil {
		return nil, err
	}
	if err := json.NewDecoder(io.LimitReader(connection, maxHandedBytes)).Decode(&paths); err != nil {
		return nil, err
	}
	_, err = connection.Write([]byte("ok\n"))
	return paths, err
}

// StopServing leaves later starts waiting for the folder: the program is closing.
func (i *Instance) StopServing() error {
	if i.listener == nil {
		return nil
	}
	if err := i.listener.Close(); !errors.Is(err, net.ErrClosed) { // it removes the socket
		return err
	}
	return nil
}

// Close gives the folder up.
func (i *Instance) Close() error {
	return errors.Join(i.StopServing(), i.lock.Close())
}

// PathArguments are the arguments that name files, as full paths: options, such as the process number old systems pass, are left out.
func PathArguments(args []string, dir string) []string {
	var out []string
	for _, a := range args {
		if a == "" || strings.HasPrefix(a, "-") {
			continue
		}
		if !filepath.IsAbs(a) {
			a = filepath.Join(dir, a)
		}
		out = append(out, filepath.Clean(a))
	}
	return out
}
