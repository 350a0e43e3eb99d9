/* A program that does not use CUDA. */
int main(void)
{
	return 0;
}
